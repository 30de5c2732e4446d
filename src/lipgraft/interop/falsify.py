"""Looking for a violation by gradient ascent, for disjuncts of any number of rows, in many regions at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipgraft.attacks import ascend, pgd_steps
from lipgraft.interop.replay import Counterexample, replay
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Conjunction, Region
from lipgraft.network import call, evaluated
from lipgraft.rounding import inner_box


@dataclass(frozen=True)
class Effort:
    """starts: per disjunct, the first in the middle of the box and the others at random; steps: of each ascent."""

    starts: int
    steps: int


QUICK, THOROUGH = Effort(starts=2, steps=10), Effort(starts=8, steps=40)
TRIED = 5  # points of a batch that onnxruntime is asked about
BEYOND = 1e-3  # how far past its limit every row is pushed: rounding must not undo what was found
BATCH = 512
NUMBERS = 1 << 22  # of a batch's inputs and rows together


@dataclass(frozen=True, eq=False)
class _Target:
    """One ascent: where it may go, and what it wants. middle: whether it starts there."""

    region: Region
    disjunct: Conjunction
    middle: bool


def falsify(
    network: nn.Module,
    regions: Iterable[Region],
    judge: OnnxRuntime,
    like: Tensor,
    deadline: float,
    *,
    effort: Effort = THOROUGH,
    seed: int = 0,
) -> Counterexample | None:
    """A counterexample that onnxruntime confirms, or None. like: a tensor of the network's device and dtype.

    deadline: by time.monotonic; looked at before each step of an ascent.
    """
    generator = torch.Generator().manual_seed(seed)
    for targets in _batches(_targets(regions, effort)):
        if time.monotonic() > deadline:
            return None
        A, b = _stacked([target.disjunct for target in targets])
        rows = A.to(like), b.to(like)
        found = _ascended(network, targets, rows, judge.file.input_shape, like, effort.steps, deadline, generator)
        with torch.no_grad(), evaluated(network):
            y = call(network, found).cpu().double()
        excess = (torch.einsum("bkn,bn->bk", A, y) - b).amax(1)
        for i in excess.argsort()[:TRIED].tolist():
            confirmed = replay(judge, targets[i].region, found[i : i + 1]) if excess[i] <= 0 else None
            if confirmed is not None:
                return confirmed
    return None


def _targets(regions: Iterable[Region], effort: Effort) -> Iterator[_Target]:
    for region in regions:
        for start in range(effort.starts):
            for disjunct in region.disjuncts:
                yield _Target(region, disjunct, middle=start == 0)


def _batches(targets: Iterable[_Target]) -> Iterator[list[_Target]]:
    """At most BATCH together, and fewer where they are large."""
    batch: list[_Target] = []
    largest = 0
    for target in targets:
        largest = max(largest, len(target.region.lower), target.disjunct.A.numel())
        if batch and (len(batch) == BATCH or largest * (len(batch) + 1) > NUMBERS):
            yield batch
            batch, largest = [], max(len(target.region.lower), target.disjunct.A.numel())
        batch.append(target)
    if batch:
        yield batch


def _ascended(
    network: nn.Module,
    targets: list[_Target],
    rows: tuple[Tensor, Tensor],
    shape: tuple[int, ...],
    like: Tensor,
    steps: int,
    deadline: float,
    generator: torch.Generator,
) -> Tensor:
    """Push every row of each point's disjunct below its limit: (B, *shape). rows: see `_stacked`."""
    lower, upper = (torch.stack([getattr(target.region, end) for target in targets]) for end in ("lower", "upper"))
    low, high = (end.to(like.device).reshape(-1, *shape) for end in inner_box(lower, upper, like.dtype))
    A, b = rows

    def loss(y: Tensor) -> Tensor:
        over = torch.einsum("bkn,bn->bk", A, y) - b
        return -(over + BEYOND).relu().sum(1)

    share = torch.rand(len(targets), *shape, generator=generator)
    share[torch.tensor([target.middle for target in targets])] = 0.5
    x = low + share.to(like) * (high - low)
    with evaluated(network, freeze=True):
        for step in pgd_steps(steps, None):
            if time.monotonic() > deadline:
                break
            x, _ = ascend(network, x, low, high, loss, eps=(high - low) / 2, steps=[step])
    return x


def _stacked(disjuncts: list[Conjunction]) -> tuple[Tensor, Tensor]:
    """All disjuncts with as many rows as the longest has: (B, k, outputs), (B, k). Rows 0 y <= inf fill up."""
    longest = max(len(disjunct.b) for disjunct in disjuncts)
    A = torch.zeros(len(disjuncts), longest, disjuncts[0].A.shape[1], dtype=torch.float64)
    b = torch.full((len(disjuncts), longest), math.inf, dtype=torch.float64)
    for i, disjunct in enumerate(disjuncts):
        A[i, : len(disjunct.b)], b[i, : len(disjunct.b)] = disjunct.A, disjunct.b
    return A, b
