"""Branch and bound on inputs: for networks with few of them, halving boxes is a complete method.

Every box is bounded by CROWN. One whose bound is not positive is cut in half across the input that the bound depends on
most, and both halves go back on the pile.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.crown import prepare, specification_bounds
from lipgraft.bounds.geometry import at_input, input_like
from lipgraft.bounds.numerics import proved
from lipgraft.box import Box
from lipgraft.interop.property_network import PropertyNetwork
from lipgraft.interop.replay import Counterexample, replay
from lipgraft.interop.result import Word
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Region
from lipgraft.network import Network, evaluate, full_precision, trace

MOST_INPUTS = 20
BATCH = 512
NUMBERS = 1 << 25  # of the largest array that bounding a batch of boxes needs
NARROW = 1e-5  # of the whole box: below this, rounding decides, and cutting on proves nothing


@dataclass(frozen=True, eq=False)
class Split:
    """status: "unsat", "sat", "timeout" or "unknown"; boxes: how many were bounded."""

    status: Word
    counterexample: Counterexample | None
    boxes: int


@torch.no_grad()
def split_inputs(
    model: PropertyNetwork, region: Region, judge: OnnxRuntime, deadline: float, *, sound: bool = False
) -> Split:
    """Decide a region whose property is this network's, until `deadline` (time.monotonic).

    sound: bounds hold in real numbers (see `bounds.sound`); the model is of double precision.
    """
    shape = tuple(model.centre.shape)
    with full_precision():
        network = trace(model, shape).to()
        widest = max(math.prod(node.shape) for node in network.nodes)
        room = max(1, min(BATCH, NUMBERS // widest**2))
        pile = [_Pile(-torch.ones_like(model.centre)[None], torch.ones_like(model.centre)[None])]
        done = 0
        while pile:
            if time.monotonic() > deadline:
                return Split("timeout", None, done)
            box = _take(pile, room)
            done += len(box.lower)
            bound, weight, corner = _bounded(network, box, sound)
            candidates = torch.cat([corner, (box.lower + box.upper) / 2])
            lost = evaluate(network, candidates)[network.output][:, 1:].amax(1) >= 0
            found = replay(judge, region, model.inputs(candidates[lost][:3]))
            if found is not None:
                return Split("sat", found, done)
            left = ~proved(bound)
            if not bool(left.any()):
                continue
            width = (box.upper - box.lower)[left].flatten(1)
            if bool((width.amax(1) < NARROW).any()):
                return Split("unknown", None, done)
            score = torch.where(width >= NARROW, weight[left].flatten(1).abs() * width + 1e-9 * width, -1.0)
            pile.append(_halved(box.lower[left], box.upper[left], score.argmax(1)))
    return Split("unsat", None, done)


@dataclass(frozen=True, eq=False)
class _Pile:
    """Boxes inside [-1, 1]: lower, upper (N, *shape)."""

    lower: Tensor
    upper: Tensor


def _take(pile: list[_Pile], room: int) -> _Pile:
    """At most `room` boxes from the top of the pile, so that the pile stays as low as the tree is deep."""
    taken = []
    while pile and room:
        top = pile.pop()
        if len(top.lower) > room:
            pile.append(_Pile(top.lower[:-room], top.upper[:-room]))
            top = _Pile(top.lower[-room:], top.upper[-room:])
        taken.append(top)
        room -= len(top.lower)
    return _Pile(torch.cat([part.lower for part in taken]), torch.cat([part.upper for part in taken]))


def _bounded(network: Network, box: _Pile, sound: bool) -> tuple[Tensor, Tensor, Tensor]:
    """For each box the worst margin's bound (N,), its coefficients, and where it is attained, (N, *shape)."""
    count, disjuncts = len(box.lower), network.output_shape[0] - 1
    rows = torch.cat([torch.ones(disjuncts, 1), -torch.eye(disjuncts)], 1).to(box.lower)
    prepared = prepare(network, Box(box.lower, box.upper), sound_for=torch.float64 if sound else None)
    record: dict[int, Tensor] = {}
    bounds = specification_bounds(prepared, rows.expand(count, 1, -1, -1), record=record)[:, 0]
    worst, which = torch.where(torch.isfinite(bounds), bounds, -torch.inf).min(1)
    at_root = record[0][:, 0][torch.arange(count, device=which.device), which]
    weight = at_input(network, input_like(network), at_root)
    return worst, weight, torch.where(weight > 0, box.lower, box.upper)


def _halved(lower: Tensor, upper: Tensor, axis: Tensor) -> _Pile:
    """Both halves of every box. axis: (N,), of the flattened input."""
    shape = lower.shape
    low, high, at = lower.flatten(1), upper.flatten(1), axis[:, None]
    middle = (low.gather(1, at) + high.gather(1, at)) / 2
    lows = torch.cat([low, low.scatter(1, at, middle)])
    highs = torch.cat([high.scatter(1, at, middle), high])
    return _Pile(lows.view(-1, *shape[1:]), highs.view(-1, *shape[1:]))
