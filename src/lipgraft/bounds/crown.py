"""CROWN: bounds of every pre-activation that needs one, layer by layer, by backward substitution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lipgraft.bounds.alpha_settings import AlphaSettings
from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import interval_is_exact, plan
from lipgraft.bounds.intermediate import optimised_bounds
from lipgraft.bounds.interval import Interval, interval_step
from lipgraft.bounds.memory import chunked
from lipgraft.bounds.neurons import neuron_bounds, selected
from lipgraft.bounds.numerics import guard_lower, guard_upper
from lipgraft.bounds.relaxations import Lines, relax, unstable
from lipgraft.box import Box
from lipgraft.network.graph import Activation, Network

Neurons = Literal["needed", "all"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch of boxes with the interval of every node and the lines of every activation: ready for specifications."""

    network: Network
    box: Box
    intervals: list[Interval]
    lines: dict[int, Lines]

    def at(self, problems: slice) -> Prepared:
        """Some of the problems."""
        intervals = [(lower[problems], upper[problems]) for lower, upper in self.intervals]
        return Prepared(self.network, self.box[problems], intervals, {i: x.at(problems) for i, x in self.lines.items()})

    def layers(self) -> dict[str, Interval]:
        """Pre-activation bounds by activation name."""
        return {node.name: self.intervals[node.inputs[0]] for _, node in self.network.activations()}


def prepare(
    network: Network,
    box: Box,
    *,
    backward: bool = True,
    neurons: Neurons = "needed",
    layers: Mapping[str, Interval] | None = None,
    alpha: AlphaSettings | None = None,
) -> Prepared:
    """Bound every pre-activation, in order.

    backward: refine interval arithmetic by backward substitution (CROWN); otherwise intervals alone (CROWN-IBP).
    neurons: "needed" refines neurons that the interval leaves unstable and that are not grafted; "all", every one.
    layers: bounds known from elsewhere, by activation name; they are taken as they are.
    alpha: with `intermediate` steps, optimise the lines below each layer for that layer's bounds.
    """
    exact = interval_is_exact(network)
    readers: dict[int, list[Activation]] = {}
    for _, act in network.activations():
        readers.setdefault(act.inputs[0], []).append(act)
    intervals: list[Interval] = []
    lines: dict[int, Lines] = {}
    for i, node in enumerate(network.nodes):
        lb, ub = interval_step(node, [intervals[j] for j in node.inputs], box)
        known = [layers[act.name] for act in readers.get(i, []) if layers is not None and act.name in layers]
        if known:
            lb, ub = known[0]
        elif i in readers:
            lb, ub = guard_lower(lb), guard_upper(ub)
            if backward and not exact[i]:
                lb, ub = _refine(network, i, (lb, ub), readers[i], intervals, lines, neurons)
                if alpha is not None and alpha.intermediate:
                    lb, ub = _optimise(network, i, (lb, ub), readers[i], intervals, alpha)
        intervals.append((lb, ub))
        if isinstance(node, Activation):
            lines[i] = relax(node, *intervals[node.inputs[0]])
    return Prepared(network, box, intervals, lines)


def _refine(
    network: Network,
    target: int,
    interval: Interval,
    readers: list[Activation],
    intervals: list[Interval],
    lines: dict[int, Lines],
    neurons: Neurons,
) -> Interval:
    """Tighten the interval of a pre-activation by backward substitution, for the neurons that need it."""
    if neurons == "all":
        size = math.prod(network.nodes[target].shape)
        index = torch.arange(size, device=interval[0].device).expand(len(interval[0]), -1)
    else:
        index = _needed(interval, readers)
    path = plan(network, target)
    state: dict[tuple[int, int], Relaxed] = {}

    def some(problems: slice, here: Tensor) -> Tensor:
        key = (problems.start, problems.stop)
        if key not in state:
            state.clear()
            lower, upper = intervals[path.root]
            below = {i: line.at(problems) for i, line in lines.items() if i in path.windows}
            state[key] = Relaxed(below, (lower[problems], upper[problems]))
        return neuron_bounds(network, path, state[key], here)

    return _tightened(interval, index, path.floats * 2, some)


def _optimise(
    network: Network,
    target: int,
    interval: Interval,
    readers: list[Activation],
    intervals: list[Interval],
    alpha: AlphaSettings,
) -> Interval:
    """Tighten what is still unstable once more, with lines chosen for this layer."""
    path = plan(network, target)
    # The gradient keeps the rows of every node on the way, not only of the largest two.
    floats = path.floats * len(path.windows)
    return _tightened(
        interval,
        _needed(interval, readers),
        floats,
        lambda problems, here: optimised_bounds(network, path, intervals, problems, here, alpha),
    )


def _needed(interval: Interval, readers: list[Activation]) -> Tensor:
    """Positions of the neurons that some activation finds unstable: (B, S)."""
    return selected(torch.stack([unstable(act, *interval) for act in readers]).any(0).flatten(1))


def _tightened(interval: Interval, index: Tensor, floats: int, bounds: Callable[[slice, Tensor], Tensor]) -> Interval:
    """The interval cut with bounds(problems, index): lower bounds of the neurons and of their negatives, (B, 2, S)."""
    shape = interval[0].shape
    lb, ub = (end.flatten(1).clone() for end in interval)

    def work(problems: slice, rows: slice) -> None:
        here = index[problems, rows]
        bound = bounds(problems, here)
        lb[problems].scatter_(1, here, torch.maximum(lb[problems].gather(1, here), guard_lower(bound[:, 0])))
        ub[problems].scatter_(1, here, torch.minimum(ub[problems].gather(1, here), guard_upper(-bound[:, 1])))

    chunked(len(lb), index.shape[1], floats * lb.element_size(), lb.device, work)
    return lb.view(shape), ub.view(shape)


def specification_bounds(
    prepared: Prepared,
    C: Tensor,
    lines: Mapping[int, Lines] | None = None,
    shifts: Mapping[int, Tensor] | None = None,
    record: dict[int, Tensor] | None = None,
) -> Tensor:
    """Lower bounds of C f(x) over each box: C (B, G, S, n) -> (B, G, S).

    lines: others than the prepared ones. shifts, record: see `Relaxed` and `Substitution`; record[0] becomes the
    coefficients of the network's input-like root, whose signs tell the corner where the bound is attained.
    """
    network = prepared.network
    path = plan(network, network.output)
    relaxed = Relaxed(prepared.lines if lines is None else lines, prepared.intervals[path.root], shifts or {})
    walk = Substitution(network, path, relaxed, None, record)
    rows, const = walk.to_root(Rows(C), C.new_zeros(C.shape[:3]), network.output)
    if record is not None:
        record[0] = rows.data
    return const + walk.minimum(rows)
