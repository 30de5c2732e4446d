"""What is known of every image so far, and the verdicts made of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lipgraft.verify.verdict import Status, Verdict

Decided = tuple[int, Verdict]
"""An image's place in the batch, and its verdict."""


class Ledger:
    """Seconds, subproblems, margins and unstable shares by image."""

    def __init__(self, images: int, device: torch.device) -> None:
        self.device = device
        self.began = time.perf_counter()
        self.seconds = [0.0] * images
        self.subproblems = [0] * images
        self.margin: list[float | None] = [None] * images
        self.unstable: list[float | None] = [None] * images
        self.method: list[str | None] = [None] * images
        self.correct: list[bool | None] = [None] * images
        self.attacked = [False] * images

    def now(self) -> float:
        """Seconds since the start, after the device has done all it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - self.began

    @contextmanager
    def share(self, images: list[int]) -> Iterator[None]:
        """Charge the time that passes within to these images, equally."""
        start = self.now()
        try:
            yield
        finally:
            spent = (self.now() - start) / max(len(images), 1)
            for image in images:
                self.seconds[image] += spent

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
        )

    def failed(self, image: int, reason: str) -> Decided:
        """Out of memory is "unknown"; any other failure is an "error" with its text."""
        return self.verdict(image, "unknown" if reason == "memory" else "error", reason=reason)
