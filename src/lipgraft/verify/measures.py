"""The paper's measures, from verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lipgraft.verify.verdict import Verdict


@dataclass(frozen=True)
class Measures:
    """Shares of `count` images, the first ones of the test set.

    sa: classified correctly; ra: of these, not broken by the attack before verification; va: verified, so that
    misclassified, falsified and undecided images all count against it.
    unr: unstable and not grafted neurons over all neurons; time: seconds of the verifier, without the attack. Both are
    means over the images that reach the verifier (correct, not broken by the attack), None when there are none.
    """

    count: int
    sa: float
    ra: float
    va: float
    unr: float | None
    time: float | None
    reached: int
    verified: int
    falsified: int
    unknown: int
    error: int


def measure(verdicts: Sequence[Verdict]) -> Measures:
    """The measures of a list of verdicts, one per image."""
    count = len(verdicts)
    status = {name: sum(v.status == name for v in verdicts) for name in ("verified", "falsified", "unknown", "error")}
    reached = [v for v in verdicts if v.reached_verifier]
    wrong = sum(v.method == "misclassified" for v in verdicts) + status["error"]
    broken = sum(v.method == "pgd" and v.status == "falsified" for v in verdicts)
    return Measures(
        count=count,
        sa=_share(count - wrong, count),
        ra=_share(count - wrong - broken, count),
        va=_share(status["verified"], count),
        unr=_mean([v.unstable for v in reached if v.unstable is not None]),
        time=_mean([v.seconds for v in reached]),
        reached=len(reached),
        **status,
    )


def _share(part: int, count: int) -> float:
    return part / count if count else 0.0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
