"""Refinement by branching: split the box by the signs of pre-activations, and bound each part.

With every sign decided the Jacobian is known exactly, and a linear program says whether such inputs exist. The part
with the largest bound is always taken next, so that a part with nothing left to decide, when its turn comes, is the
answer: run to the end, the bound equals the largest row over all activation patterns that occur in the box.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lipgraft.bounds import METHODS
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.interval import Interval
from lipgraft.box import Box
from lipgraft.errors import NumericalError
from lipgraft.network import kinks_at_zero
from lipgraft.network.graph import Activation, Input, Network
from lipgraft.sensitivity.interval_jacobian import one_hot_rows, range_norms
from lipgraft.sensitivity.middle_network import Middle, effects
from lipgraft.sensitivity.problem import Problem, slope_ranges

INFEASIBLE = 2
"""The word of `linprog` for: no such point."""


@dataclass(frozen=True)
class Split:
    """The pre-activation of one neuron is >= 0 (positive) or <= 0. neuron: its flat place in the layer."""

    position: int
    neuron: int
    positive: bool


def occurs(network: Network, box: Box, slopes: Mapping[int, Interval], splits: Sequence[Split]) -> bool:
    """Whether the box, one, holds an input with these signs. Every derivative must be known: slopes (1, *shape).

    Then every pre-activation is a linear function of the input, and the question is a linear program.
    """
    from scipy.optimize import linprog  # here, because few need it and it is slow to import

    if not splits:
        return True
    middle = Middle.of(network, slopes, {i: torch.zeros_like(low.flatten(1)).bool() for i, (low, _) in slopes.items()})
    at_centre = _values(network, box.centre, middle.centre)
    rows, limits = [], []
    for split in splits:
        target = network.nodes[split.position].inputs[0]
        start = torch.zeros_like(at_centre[target]).flatten()
        start[split.neuron] = 1.0
        row = middle.back(start.view(1, 1, *network.nodes[target].shape), target, slice(0, 1), {}).flatten()
        constant = at_centre[target].flatten()[split.neuron] - row @ box.centre.flatten()
        sign = -1.0 if split.positive else 1.0  # sign * (row x + constant) <= 0
        rows.append(sign * row)
        limits.append(-sign * constant)
    ends = torch.stack([box.lower.flatten(), box.upper.flatten()], 1)
    zero = torch.zeros(box.lower[0].numel())
    result = linprog(
        zero.numpy(), torch.stack(rows).cpu().numpy(), torch.stack(limits).cpu().numpy(), bounds=ends.cpu().numpy()
    )
    if result.status not in (0, INFEASIBLE):
        raise NumericalError(f"the linear program of an activation pattern failed: {result.message}")
    return bool(result.status == 0)


def _values(network: Network, x: Tensor, slope: Mapping[int, Tensor]) -> list[Tensor]:
    """The value of every node when each activation is the line of its known slope, through 0 or grafted."""
    values: list[Tensor] = []
    for i, node in enumerate(network.nodes):
        inputs = [values[j] for j in node.inputs]
        if isinstance(node, Input):
            value = x
        elif isinstance(node, Activation):
            value = slope[i] * inputs[0]
            if node.graft is not None:
                value = value + torch.where(node.graft.mask, node.graft.omega, 0.0)
        else:
            value = node.forward(*inputs)
        values.append(value)
    return values


Refine = Callable[[Problem, Mapping[int, Interval], Tensor], Tensor]
Layers = dict[str, Interval]
"""Pre-activation bounds by the activation's name, (1, *shape)."""


@dataclass(frozen=True, order=True)
class Part:
    """A part of one box. key: minus its bound, and a running number."""

    key: tuple[float, int]
    splits: tuple[Split, ...] = field(compare=False)
    layers: Layers = field(compare=False)
    slopes: dict[int, Interval] = field(compare=False)

    @property
    def bound(self) -> float:
        return -self.key[0]


def branched_norms(problem: Problem, norms: Tensor, refine: Refine) -> Tensor:
    """norms (B, n), none of them above what branching proves for the largest of its image. Works in double precision.

    refine: makes a part's norms (1, n) smaller, given the ranges of the derivatives.
    """
    out = norms.clone()
    for image in range(len(norms)):
        if bool(norms[image].isfinite().all()):
            search = _Search(_double(problem, image), refine, float(norms[image].max()))
            out[image] = norms[image].clamp(max=search.run())
    return out


def _double(problem: Problem, image: int) -> Problem:
    """One image of the problem, in double precision, with all kinks at zero, where they can be split."""
    dtype, one = torch.float64, slice(image, image + 1)
    return replace(
        problem,
        network=kinks_at_zero(problem.network.to(dtype=dtype)),
        box=problem.box[one].to(dtype=dtype),
        eps=problem.eps[one].to(dtype),
        weight=problem.weight.to(dtype),
    )


class _Search:
    """The parts of one box that are still open, the one with the largest bound first."""

    def __init__(self, problem: Problem, refine: Refine, bound: float) -> None:
        self.problem, self.network, self.refine, self.bound = problem, problem.network, refine, bound
        self.rows = one_hot_rows(problem.network, problem.weight)
        self.open: list[Part] = []
        self.number = 0

    def run(self) -> float:
        """The bound after as many splits as the settings allow."""
        self._push((), None)
        splits = 0
        while self.open:
            part = self.open[0]
            choice = self._choose(part)
            if choice is None and (
                self._smooth(part) or occurs(self.network, self.problem.box, part.slopes, part.splits)
            ):
                return part.bound
            if choice is not None and splits >= self.problem.settings.branches:
                return part.bound
            heapq.heappop(self.open)
            if choice is not None:
                splits += 1
                for positive in (True, False):
                    self._push((*part.splits, Split(*choice, positive)), part)
        return self.bound  # every part was refuted, which only rounding can do

    def _push(self, splits: tuple[Split, ...], parent: Part | None) -> None:
        """Bound a part and keep it, unless its bounds already show that it is empty."""
        layers = self._layers(splits, parent)
        if layers is None:
            return
        slopes = self._slopes(layers, splits)
        norms = range_norms(self.problem, slopes)
        bound = float(self.refine(self.problem, slopes, norms).max())
        bound = min(bound, self.bound if parent is None else parent.bound)
        heapq.heappush(self.open, Part((-bound, self.number), splits, layers, slopes))
        self.number += 1

    def _layers(self, splits: tuple[Split, ...], parent: Part | None) -> Layers | None:
        """Pre-activation bounds under the splits: all but the last are in the parent's bounds already."""
        backward, _ = METHODS[self.problem.settings.bounds]
        known: Layers = {}
        if parent is not None:
            last = splits[-1]
            for i, node in self.network.activations():
                if i <= last.position:
                    known[node.name] = parent.layers[node.name]
            name = self.network.nodes[last.position].name
            known[name] = _cut(known[name], last)
        layers = prepare(self.network, self.problem.box, backward=backward, layers=known).layers()
        if parent is None:
            return layers
        for name, (lower, upper) in layers.items():
            low, high = torch.maximum(lower, parent.layers[name][0]), torch.minimum(upper, parent.layers[name][1])
            if bool((low > high + 1e-9 * (1 + high.abs())).any()):
                return None
            layers[name] = torch.minimum(low, high), high
        return layers

    def _slopes(self, layers: Layers, splits: tuple[Split, ...]) -> dict[int, Interval]:
        """The ranges of the derivatives; that of a split neuron is known."""
        slopes = slope_ranges(self.network, layers)
        for split in splits:
            node = self.network.nodes[split.position]
            assert isinstance(node, Activation)
            for end in slopes[split.position]:
                end.view(-1)[split.neuron] = node.curve.slopes[int(split.positive)]
        return slopes

    def _choose(self, part: Part) -> tuple[int, int] | None:
        """The kinked neuron whose remainder seems to matter most: (position, place), or None."""
        best: tuple[float, int, int] | None = None
        for i, effect in effects(self.network, part.slopes, self.rows, self.problem.weight).items():
            node = self.network.nodes[i]
            assert isinstance(node, Activation)
            low, high = part.slopes[i]
            if node.curve.splits_at_zero and bool((low != high).any()):
                score = torch.where((low != high).flatten(), effect.flatten(), -1.0)
                value, place = score.max(0)
                best = max(best or (-1.0, 0, 0), (float(value), i, int(place)))
        return None if best is None else best[1:]

    def _smooth(self, part: Part) -> bool:
        """Whether some derivative is unknown that no sign decides."""
        return any(bool((low != high).any()) for low, high in part.slopes.values())


def _cut(interval: Interval, split: Split) -> Interval:
    """The interval with one neuron's part below or above 0 cut off."""
    lower, upper = (end.clone() for end in interval)
    end = lower if split.positive else upper
    flat = end.view(-1)
    flat[split.neuron] = flat[split.neuron].clamp(min=0.0) if split.positive else flat[split.neuron].clamp(max=0.0)
    return lower, upper
