"""Is an image's class the same for every input near it? Proofs, counterexamples, and honest "unknown"s."""

from lipgraft.verify.api import verify, verify_stream
from lipgraft.verify.benchmark import bench_verify
from lipgraft.verify.branching import BRANCHING
from lipgraft.verify.database import Row, StoreError
from lipgraft.verify.fingerprint import Identity
from lipgraft.verify.measures import Measures, measure
from lipgraft.verify.runs import RESULTS, verify_run
from lipgraft.verify.settings import VerifySettings
from lipgraft.verify.store import ResultStore, read_results
from lipgraft.verify.verdict import Verdict

__all__ = [
    "BRANCHING",
    "RESULTS",
    "Identity",
    "Measures",
    "ResultStore",
    "Row",
    "StoreError",
    "Verdict",
    "VerifySettings",
    "bench_verify",
    "measure",
    "read_results",
    "verify",
    "verify_run",
    "verify_stream",
]
