"""Is an image's class the same for every input near it? Proofs, counterexamples, and honest "unknown"s."""

from lipgraft.verification.api import verify, verify_stream
from lipgraft.verification.branch_and_bound.branching import BRANCHING
from lipgraft.verification.certificate import Certificate
from lipgraft.verification.measures import Measures, measure
from lipgraft.verification.settings import AttackSettings, BranchSettings, Limits, OptimiseSettings, VerifySettings
from lipgraft.verification.verdict import Verdict, plot

__all__ = [
    "BRANCHING",
    "AttackSettings",
    "BranchSettings",
    "Certificate",
    "Limits",
    "Measures",
    "OptimiseSettings",
    "Verdict",
    "VerifySettings",
    "measure",
    "plot",
    "verify",
    "verify_stream",
]
