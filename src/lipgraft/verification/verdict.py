"""What the verifier says of one image, and what it knows of every image until then."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from torch import Tensor

from lipgraft.display import Chart, chart, table
from lipgraft.verification.certificate import Certificate, Drafts

T = TypeVar("T")

STANDING = ("seconds", "spent", "subproblems", "margin", "unstable", "method", "correct", "attacked")
"""What a ledger keeps of every image."""

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
    seconds: device time spent on this image; without the attack, unless that ends it.
    ended: seconds from the beginning of the call to this verdict, by the clock on the wall; None: results of older
    versions, which did not say.
    method: the stage that decided, or the last one that ran: "misclassified", "pgd", "crown", "alpha-crown", "bab".
    subproblems: how many were bounded in branch and bound. unstable: share of all neurons that are neither grafted nor
    stable under CROWN's bounds; None for an image that never reached the verifier.
    correct: whether the model classifies the image itself correctly; None: it was never asked. attacked: whether the
    attack had its turn with the image (one that is misclassified, or proved by CROWN, needs none); None: results of
    older versions, which did not say.
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


Decided = tuple[int, Verdict]
"""An image's place in the batch, and its verdict."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a stage decided, and what goes on to the next one."""

    decided: list[Decided] = field(default_factory=list)
    rest: list[T] = field(default_factory=list)

    def __add__(self, other: Outcome[T]) -> Outcome[T]:
        return Outcome(self.decided + other.decided, self.rest + other.rest)


Shares = list[tuple[int, int]]
"""Images by their places in the caller's batch, and how many subproblems each has in a batch of them."""


class Ledger:
    """Seconds, subproblems, margins and unstable shares by image.

    seconds: as verdicts report them, without the attack; spent: everything, which the limit counts.
    """

    def __init__(
        self,
        images: int,
        device: torch.device,
        began: float | None = None,
        drafts: Drafts | None = None,
        speaks_of: str | None = None,
    ) -> None:
        """began: when the whole call began, by time.perf_counter; by default now. drafts: proofs to be kept, if any.

        speaks_of: what proofs speak of; None: fast arithmetic.
        """
        self.drafts, self.speaks_of = drafts, speaks_of
        self.device = device
        self.began = time.perf_counter() if began is None else began
        self.seconds = [0.0] * images
        self.spent = [0.0] * images
        self.subproblems = [0] * images
        self.margin: list[float | None] = [None] * images
        self.unstable: list[float | None] = [None] * images
        self.method: list[str | None] = [None] * images
        self.correct: list[bool | None] = [None] * images
        self.attacked = [False] * images

    def now(self) -> float:
        """Seconds since the call began, after the device has done all it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - self.began

    def charge(self, images: Iterable[int], seconds: float) -> None:
        """Charge this time to each of these images."""
        for image in images:
            self.seconds[image] += seconds
            self.spent[image] += seconds

    @contextmanager
    def share(self, images: list[int]) -> Iterator[None]:
        """Charge the time that passes within to these images, equally."""
        start = self.now()
        try:
            yield
        finally:
            self.charge(images, (self.now() - start) / max(len(images), 1))

    @contextmanager
    def charged(self, shares: Shares) -> Iterator[None]:
        """Charge the time that passes within to images, by their share of subproblems."""
        start, total = self.now(), sum(count for _, count in shares)
        try:
            yield
        finally:
            spent = self.now() - start
            for image, count in shares:
                self.charge([image], spent * count / total)

    def before_proofs(self, images: list[int]) -> None:
        """From here on an image's time is the verifier's own; its limit still counts what the attack took."""
        for image in images:
            self.seconds[image] = 0.0

    def note(self, images: list[int], margins: Tensor, method: str) -> None:
        """A method's lower bounds of the images' margins, (B, S)."""
        for image, worst in zip(images, margins.amin(1).tolist(), strict=True):
            self.margin[image], self.method[image] = worst, method

    def verdict(
        self,
        image: int,
        status: Status,
        *,
        method: str | None = None,
        reason: str | None = None,
        counterexample: Tensor | None = None,
        margin: float | None = None,
    ) -> Decided:
        """The image's verdict. method, margin: those noted last, unless given."""
        known = self.margin[image] if margin is None else margin
        certificate = None
        if self.drafts is not None and status == "verified":
            certificate = self.drafts.finish(image)
        elif self.drafts is not None and counterexample is not None:
            certificate = self.drafts.counterexample(image, counterexample)
        if self.drafts is not None:
            self.drafts.drop(image)
        return image, Verdict(
            status=status,
            reason=reason,
            counterexample=counterexample,
            margin=known,
            seconds=self.seconds[image],
            method=self.method[image] if method is None else method,
            subproblems=self.subproblems[image],
            unstable=self.unstable[image],
            correct=self.correct[image],
            attacked=self.attacked[image],
            certificate=certificate,
            speaks_of=self.speaks_of if status == "verified" else None,
            ended=time.perf_counter() - self.began,
        )

    def standing(self, image: int) -> dict[str, Any]:
        """All that is known of an image, for another ledger to go on with."""
        return {name: getattr(self, name)[image] for name in STANDING}

    def resume(self, image: int, standing: Mapping[str, Any]) -> None:
        for name in STANDING:
            getattr(self, name)[image] = standing[name]

    def failed(self, image: int, reason: str) -> Decided:
        """Out of memory is "unknown"; any other failure is an "error" with its text."""
        return self.verdict(image, "unknown" if reason == "memory" else "error", reason=reason)
