"""Looking for a violation among the corners of a box, by turning one input after another.

A conjunction may hold at few corners alone, as where a network encodes a formula: inputs are to be 0 or 1, and every
clause is to hold. Gradients end in between, where each row pulls another way. A walk over corners always takes the turn
that leaves the least excess, and does not take it back for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lipgraft.interop.replay import Counterexample, replay
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Conjunction, Region
from lipgraft.network import call, evaluated
from lipgraft.rounding import inner_box

INPUTS = 256  # of a region whose corners are walked over, at most
WALKS = 16  # at once, each from a random corner
STEPS = 1000
BATCH = 2048
RESTS = 8  # steps for which an input that was turned stays as it is, and up to as many again at random


def falsify_corners(
    network: nn.Module, region: Region, judge: OnnxRuntime, like: Tensor, deadline: float, *, seed: int = 0
) -> Counterexample | None:
    """A counterexample that onnxruntime confirms, or None. like: a tensor of the network's device and dtype.

    deadline: by time.monotonic; looked at before each step of a walk.
    """
    low, high = (end.to(like.device) for end in inner_box(region.lower, region.upper, like.dtype))
    if len(low) > INPUTS or not bool((low < high).any()):
        return None
    generator = torch.Generator().manual_seed(seed)

    def at(corners: Tensor) -> Tensor:
        return torch.where(corners.to(like.device), high, low).view(-1, *judge.file.input_shape)

    def excess(disjunct: Conjunction, corners: Tensor) -> Tensor:
        y = torch.cat([call(network, at(some)) for some in torch.split(corners, BATCH)])
        return (y @ disjunct.A.to(like).T - disjunct.b.to(like)).clamp(min=0).sum(1).cpu()

    free = torch.nonzero((low < high).cpu()).flatten()
    with torch.no_grad(), evaluated(network):
        for disjunct in region.disjuncts:
            corner = _walked(partial(excess, disjunct), len(low), free, deadline, generator)
            found = None if corner is None else replay(judge, region, at(corner[None]))
            if found is not None:
                return found
    return None


def _walked(
    excess: Callable[[Tensor], Tensor], inputs: int, free: Tensor, deadline: float, generator: torch.Generator
) -> Tensor | None:
    """A corner, (inputs,) bool where True is the upper end, without excess. free: the inputs that may turn."""
    corner = torch.rand(WALKS, inputs, generator=generator) < 0.5
    rests = torch.zeros(WALKS, len(free))  # until which step
    walks = torch.arange(WALKS)
    for step in range(STEPS):
        if time.monotonic() > deadline:
            return None
        turned = corner[:, None].repeat(1, len(free), 1)
        places = torch.arange(len(free))
        turned[:, places, free] = ~turned[:, places, free]
        found = excess(turned.flatten(0, 1)).view(WALKS, len(free))
        best = found.flatten().argmin()
        if found.flatten()[best] <= 0:
            return turned.flatten(0, 1)[best]
        # A tie is broken at random: else all walks would turn the first input.
        noise = torch.rand(WALKS, len(free), generator=generator) * 1e-3
        chosen = (found + noise).masked_fill(rests > step, torch.inf).argmin(1)
        corner = turned[walks, chosen]
        rests[walks, chosen] = step + RESTS + torch.randint(RESTS, (WALKS,), generator=generator).float()
    return None
