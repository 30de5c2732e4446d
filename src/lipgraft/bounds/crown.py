"""CROWN: bounds of every pre-activation that needs one, layer by layer, by backward substitution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import Plan, Window, interval_is_exact, plan
from lipgraft.bounds.interval import Interval, interval_step
from lipgraft.bounds.memory import chunked
from lipgraft.bounds.numerics import guard_lower, guard_upper
from lipgraft.bounds.relaxations import Lines, relax, unstable
from lipgraft.box import Box
from lipgraft.network.graph import Activation, Conv, Linear, Network

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
) -> Prepared:
    """Bound every pre-activation, in order.

    backward: refine interval arithmetic by backward substitution (CROWN); otherwise intervals alone (CROWN-IBP).
    neurons: "needed" refines neurons that the interval leaves unstable and that are not grafted; "all", every one.
    layers: bounds known from elsewhere, by activation name; they are taken as they are.
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
    lb, ub = (end.flatten(1).clone() for end in interval)
    if neurons == "all":
        index = torch.arange(lb.shape[1], device=lb.device).expand(len(lb), -1)
    else:
        wanted = torch.stack([unstable(act, *interval) for act in readers]).any(0)
        index = selected(wanted.flatten(1))
    if index.shape[1] == 0:
        return interval
    path = plan(network, target)
    state: dict[tuple[int, int], Relaxed] = {}

    def work(problems: slice, rows: slice) -> None:
        key = (problems.start, problems.stop)
        if key not in state:
            state.clear()
            lower, upper = intervals[path.root]
            some = {i: line.at(problems) for i, line in lines.items() if i in path.windows}
            state[key] = Relaxed(some, (lower[problems], upper[problems]))
        here = index[problems, rows]
        bound = neuron_bounds(network, path, state[key], here)
        lb[problems].scatter_(1, here, torch.maximum(lb[problems].gather(1, here), guard_lower(bound[:, 0])))
        ub[problems].scatter_(1, here, torch.minimum(ub[problems].gather(1, here), guard_upper(-bound[:, 1])))

    chunked(len(lb), index.shape[1], path.floats * 2 * lb.element_size(), lb.device, work)
    shape = network.nodes[target].shape
    return lb.view(-1, *shape), ub.view(-1, *shape)


def selected(wanted: Tensor) -> Tensor:
    """Positions of the true elements of each row, (B, n) -> (B, S) with S the largest count.

    Rows with fewer are filled with neuron 0, whose bound is then computed for nothing, which does no harm.
    """
    count = wanted.sum(1)
    size = int(count.max()) if len(count) else 0
    slot = torch.where(wanted, wanted.cumsum(1) - 1, size)
    places = torch.arange(wanted.shape[1], device=wanted.device).expand_as(slot)
    out = torch.zeros(len(wanted), size + 1, dtype=torch.long, device=wanted.device)
    return out.scatter_(1, slot, places)[:, :size]


def neuron_bounds(network: Network, path: Plan, relaxed: Relaxed, index: Tensor) -> Tensor:
    """Lower bounds of neurons and of their negatives: index (B, S) into the flat target -> (B, 2, S)."""
    node = network.nodes[path.target]
    image = len(node.shape) == 3
    area = node.shape[1] * node.shape[2] if image else 1
    channel, place = index // area, index % area
    bias: Tensor | None = None
    match node:
        case Conv():
            start, rows, bias = node.inputs[0], _full_weight(node)[channel], node.bias
            window: Window | None = Window((1, 1), (1, 1), (0, 0)).through_conv(node)
            clean = not any(node.padding)
        case Linear():
            start, rows, window, clean, bias = node.inputs[0], node.weight[channel], None, True, node.bias
        case _:
            start, clean = path.target, True
            like = network.nodes[path.target]
            dtype = relaxed.root[0].dtype
            rows = torch.nn.functional.one_hot(channel, like.shape[0]).to(dtype)
            window = Window((1, 1), (1, 1), (0, 0)) if image else None
            rows = rows[..., None, None] if image else rows
    both = torch.stack([rows, -rows], 1)
    const = both.new_zeros(both.shape[:3]) if bias is None else torch.stack([bias[channel], -bias[channel]], 1)
    walk = Substitution(network, path, relaxed, place if image else None)
    return walk.lower_bound(Rows(both, window, clean), const, start)


def _full_weight(conv: Conv) -> Tensor:
    """The kernel with every input channel: (O, I, kh, kw), zero outside the group."""
    if conv.groups == 1:
        return conv.weight
    out, per, kh, kw = conv.weight.shape
    full = conv.weight.new_zeros(conv.groups, out // conv.groups, conv.groups, per, kh, kw)
    own = torch.arange(conv.groups, device=full.device)
    full[own, :, own] = conv.weight.view(conv.groups, out // conv.groups, per, kh, kw)
    return full.reshape(out, conv.groups * per, kh, kw)


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
