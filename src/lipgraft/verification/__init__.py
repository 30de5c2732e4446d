"""Is an image's class the same for every input near it? Proofs, counterexamples, and honest "unknown"s."""

from lipgraft.verification.api import verify, verify_stream
from lipgraft.verification.benchmark import bench_verify
from lipgraft.verification.branch_and_bound.branching import BRANCHING
from lipgraft.verification.database import Row, StoreError
from lipgraft.verification.fingerprint import Identity
from lipgraft.verification.measures import Measures, measure
from lipgraft.verification.runs import RESULTS, verify_run
from lipgraft.verification.settings import VerifySettings
from lipgraft.verification.store import ResultStore, read_results
from lipgraft.verification.verdict import Verdict

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
