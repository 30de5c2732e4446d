"""What the verifier says of one image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from lipgraft.display import Chart, chart, table
from lipgraft.verification.certificate import Certificate

Status = Literal["verified", "falsified", "unknown", "error"]

# Images that these methods decide never reach the verifier proper.
BEFORE_THE_VERIFIER = ("misclassified", "pgd")


@dataclass(frozen=True, eq=False)
class Verdict:
    """status: "verified" only with a proof, "falsified" only with a counterexample that was replayed. A tie of the true
    logit with another one is neither.

    reason: None, or why the status is "unknown" ("timeout", "subproblems", "memory", "gap") or "error" (a
    sentence).
    counterexample: the misclassified input (*shape), on the CPU, of a falsified image.
    margin: the true class's logit minus the strongest other one; proved lower bound of it when verified or unknown, its
    value at the counterexample when falsified; None when nothing is known.
    seconds: device time spent on this image; the attack's share alone for an image that it ends.
    ended: seconds from the beginning of the call to this verdict, by the clock on the wall; None: results of older
    versions, which did not say.
    method: the stage that decided, or the last one that ran: "misclassified", "pgd", "crown", "alpha-crown", "bab".
    subproblems: how many were bounded in branch and bound. unstable: share of all neurons that are neither grafted nor
    stable under CROWN's bounds; None for an image that never reached the verifier.
    correct: whether the model classifies the image itself correctly; None: it was never asked. attacked: whether the
    attack before the verifier had its turn with the image (one that is misclassified anyway needs none); None: results
    of older versions, which did not say.
    certificate: of a verified or falsified image, where certificates were asked for.
    speaks_of: of a verified image, what was proved of: "real" numbers or "float32" hardware; None: fast arithmetic,
    whose rounding nobody looked at. A store has it among its settings.
    """

    status: Status
    reason: str | None = None
    counterexample: Tensor | None = None
    margin: float | None = None
    seconds: float = 0.0
    method: str | None = None
    subproblems: int = 0
    unstable: float | None = None
    correct: bool | None = None
    attacked: bool | None = None
    certificate: Certificate | None = None
    speaks_of: str | None = None
    ended: float | None = None

    @property
    def reached_verifier(self) -> bool:
        """Classified correctly, and not broken by the attack."""
        return self.status != "error" and self.method is not None and self.method not in BEFORE_THE_VERIFIER

    def __str__(self) -> str:
        detail = self.reason or self.method
        return self.status if detail is None else f"{self.status} ({detail})"

    def __repr__(self) -> str:
        margin = "" if self.margin is None else f", margin {self.margin:.4g}"
        return f"<Verdict {self}{margin}, {self.seconds:.3g} s>"

    def _repr_html_(self) -> str:
        facts = {
            name: getattr(self, name) for name in ("reason", "method", "margin", "seconds", "subproblems", "correct")
        }
        rows = [(name, _short(value)) for name, value in facts.items() if value is not None]
        if self.counterexample is not None:
            rows.append(("counterexample", f"an input of shape {tuple(self.counterexample.shape)}"))
        return table(self.status, ("", ""), rows)


def plot(verdicts: Sequence[Verdict]) -> Chart:
    """What share of the images has each verdict when an image may take so many seconds; the axis is logarithmic.

    Examples:
        >>> from lipgraft.verification import Verdict, plot
        >>> plot([Verdict("verified", seconds=0.1), Verdict("falsified", seconds=2.0)])
        <Chart: Verdicts by time; .save('chart.svg') writes it>
    """
    last = max((_spent(verdict) for verdict in verdicts), default=0.0)
    series = {}
    for status in get_args(Status):
        times = sorted(_spent(verdict) for verdict in verdicts if verdict.status == status)
        steps = [point for i, t in enumerate(times) for point in ((t, i / len(verdicts)), (t, (i + 1) / len(verdicts)))]
        series[status] = [*steps, (last, len(times) / len(verdicts))] if times else []
    return chart("Verdicts by time", series, across="seconds per image", up="% of images", log=True, share=True)


def _spent(verdict: Verdict) -> float:
    """Seconds that a logarithmic axis can show."""
    return max(verdict.seconds, 1e-4)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
