"""Looking for a violation by gradient ascent, for disjuncts of any number of rows."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from lipgraft.attack import ascend, evaluating, pgd_steps
from lipgraft.interop.replay import Counterexample, replay
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Region
from lipgraft.rounding import inner_box

STEPS, STARTS, TRIED = 40, 8, 5
BEYOND = 1e-3  # how far past its limit every row is pushed: rounding must not undo what was found
BATCH = 512


def falsify(
    network: nn.Module, region: Region, judge: OnnxRuntime, like: Tensor, deadline: float, *, seed: int = 0
) -> Counterexample | None:
    """A counterexample that onnxruntime confirms, or None. like: a tensor of the network's device and dtype.

    deadline: by time.monotonic; looked at between batches of starts.
    """
    shape = judge.file.input_shape
    low, high = (end.to(like).reshape(1, *shape) for end in inner_box(region.lower, region.upper, like.dtype))
    generator = torch.Generator().manual_seed(seed)
    which = torch.arange(len(region.disjuncts)).repeat(STARTS)
    A, b = _stacked(region, like)
    middle = len(region.disjuncts)  # one start in the middle for each disjunct, then random ones
    for some in torch.split(which, BATCH):
        if time.monotonic() > deadline:
            return None
        share = torch.rand(len(some), *shape, generator=generator).to(like)
        share[:middle] = 0.5
        middle = max(0, middle - len(some))
        found = _ascend(network, low + share * (high - low), low, high, A[some.to(A.device)], b[some.to(b.device)])
        with torch.no_grad(), evaluating(network):
            excess = region.excess(network(found).cpu())
        best = excess.argsort()[:TRIED]
        confirmed = replay(judge, region, found[best[excess[best] <= 0].to(found.device)])
        if confirmed is not None:
            return confirmed
    return None


def _ascend(network: nn.Module, start: Tensor, low: Tensor, high: Tensor, A: Tensor, b: Tensor) -> Tensor:
    """Push every row of each point's disjunct below its limit. A: (B, k, outputs), b: (B, k)."""

    def loss(y: Tensor) -> Tensor:
        rows = torch.einsum("bkn,bn->bk", A, y) - b
        return -(rows + BEYOND).relu().sum(1)

    with evaluating(network, freeze=True):
        ends = low.expand_as(start), high.expand_as(start)
        point, _ = ascend(network, start, *ends, loss, eps=(high - low) / 2, steps=pgd_steps(STEPS, None))
    return point


def _stacked(region: Region, like: Tensor) -> tuple[Tensor, Tensor]:
    """All disjuncts with as many rows as the longest has: (D, k, outputs), (D, k). Rows 0 y <= 1 fill up."""
    longest = max(len(disjunct.b) for disjunct in region.disjuncts)
    A = like.new_zeros(len(region.disjuncts), longest, region.disjuncts[0].A.shape[1])
    b = like.new_ones(len(region.disjuncts), longest)
    for i, disjunct in enumerate(region.disjuncts):
        A[i, : len(disjunct.b)], b[i, : len(disjunct.b)] = disjunct.A.to(like), disjunct.b.to(like)
    return A, b
