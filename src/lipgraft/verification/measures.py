"""The paper's measures, from verdicts, each with the number of images it speaks of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lipgraft.verification.verdict import Verdict


@dataclass(frozen=True)
class Measures:
    """The measures of `count` images. None: there is no image to speak of.

    sa: share of the `classified` images that are classified correctly. ra: share of the `attacked` images that are
    correct and not broken by the attack before verification; an image that the attack never came to is not among them,
    and one that needs no attack is, if its turn came. va: share of all images that are verified, so that
    misclassified, falsified and undecided images, and those never looked at, all count against it. An error counts
    against all three.
    unr: unstable and not grafted neurons over all neurons, the mean over the `bounded` images. time: mean seconds of
    the verifier, without the attack, over the images that `reached` it: correct, and not broken by the attack.
    reasons: how many unknown images there are of each reason.
    """

    count: int
    sa: float | None
    ra: float | None
    va: float | None
    unr: float | None
    time: float | None
    reached: int
    verified: int
    falsified: int
    unknown: int
    error: int
    classified: int
    attacked: int
    bounded: int
    reasons: dict[str, int]

    @property
    def over(self) -> dict[str, int]:
        """How many images each measure speaks of, by its name."""
        return {
            "sa": self.classified,
            "ra": self.attacked,
            "va": self.count,
            "unr": self.bounded,
            "time": self.reached,
        }


def measure(verdicts: Sequence[Verdict]) -> Measures:
    """The measures of a list of verdicts, one per image."""
    status = Counter(v.status for v in verdicts)
    classified = [v for v in verdicts if _correct(v) is not None]
    attacked = [v for v in classified if v.status == "error" or _attacked(v)]
    reached = [v for v in verdicts if v.reached_verifier]
    unstable = [v.unstable for v in reached if v.unstable is not None]
    return Measures(
        count=len(verdicts),
        sa=_mean([bool(_correct(v)) for v in classified]),
        ra=_mean([bool(_correct(v)) and not _broken(v) for v in attacked]),
        va=_mean([v.status == "verified" for v in verdicts]),
        unr=_mean(unstable),
        time=_mean([v.seconds for v in reached]),
        reached=len(reached),
        verified=status["verified"],
        falsified=status["falsified"],
        unknown=status["unknown"],
        error=status["error"],
        classified=len(classified),
        attacked=len(attacked),
        bounded=len(unstable),
        reasons=dict(sorted(Counter(v.reason or "unknown" for v in verdicts if v.status == "unknown").items())),
    )


def _correct(v: Verdict) -> bool | None:
    """Whether the image itself is classified correctly; None: nobody looked. An error is not correct.

    Results of older versions did not say: an image that another stage ended was correct, and one whose time was over
    before the attack had been classified by then.
    """
    if v.status == "error" or v.method == "misclassified":
        return False
    if v.correct is not None:
        return v.correct
    return True if v.method is not None or v.reason == "timeout" else None


def _attacked(v: Verdict) -> bool:
    """Whether the attack had its turn; results of older versions did not say, but what came after it did."""
    return v.method is not None if v.attacked is None else v.attacked


def _broken(v: Verdict) -> bool:
    return v.method == "pgd" and v.status == "falsified"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
