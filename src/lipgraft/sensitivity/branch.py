"""Refinement by branching: split the box by the signs of pre-activations, and bound each part.

With every sign decided the Jacobian is known exactly, and a linear program says whether such inputs exist. The part
with the largest bound is always taken next, so that a part with nothing left to decide, when its turn comes, is the
answer: run to the end, the bound equals the largest row over all activation patterns that occur in the box.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lipgraft.bounds import METHODS
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.interval import Interval
from lipgraft.network import kinks_at_zero
from lipgraft.network.graph import Activation
from lipgraft.sensitivity.effects import effects
from lipgraft.sensitivity.interval_jacobian import one_hot_rows
from lipgraft.sensitivity.pattern import Split, occurs
from lipgraft.sensitivity.problem import Problem, slope_ranges
from lipgraft.sensitivity.upper import range_norms

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
