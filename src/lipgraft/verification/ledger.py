"""What is known of every image so far, and the verdicts made of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lipgraft.verification.certificate import Drafts
from lipgraft.verification.verdict import Status, Verdict

T = TypeVar("T")

STANDING = ("seconds", "spent", "subproblems", "margin", "unstable", "method", "correct", "attacked")
"""What a ledger keeps of every image."""

Decided = tuple[int, Verdict]
"""An image's place in the batch, and its verdict."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a stage decided, and what goes on to the next one."""

    decided: list[Decided] = field(default_factory=list)
    rest: list[T] = field(default_factory=list)

    def __add__(self, other: Outcome[T]) -> Outcome[T]:
        return Outcome(self.decided + other.decided, self.rest + other.rest)


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
