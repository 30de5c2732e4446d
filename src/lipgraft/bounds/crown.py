"""CROWN: bounds of every pre-activation that needs one, layer by layer, by backward substitution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Literal

import torch
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import interval_is_exact, plan
from lipgraft.bounds.interval import Interval, interval_step
from lipgraft.bounds.memory import Late, chunked, never
from lipgraft.bounds.neurons import neuron_bounds, positions
from lipgraft.bounds.relaxations import Lines, relax, unstable
from lipgraft.bounds.sound import Rounding, evaluation_error, guard, guard_lower, guard_upper, outward, unbounded_like
from lipgraft.box import Box
from lipgraft.network import evaluate
from lipgraft.network.graph import Activation, Network, Planar
from lipgraft.network.nodes import Cache

Work = Callable[[slice, Tensor, Tensor], Tensor]
"""(problems, index (B, S), signs (B, G, S)) -> lower bounds of sign * neuron, (B, G, S)."""

Neurons = Literal["needed", "all"]
NEGLIGIBLE = 2.0**-20  # of a layer's largest number: an interval of this width is as good as a point


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch of boxes with the interval of every node and the lines of every activation: ready for specifications.

    rounding: of sound bounds, how far they may be off; errors: how far hardware may be off at a node, by its position,
    and the planes of products (see `Relaxed`).
    """

    network: Network
    box: Box
    intervals: list[Interval]
    lines: dict[int, Lines]
    rounding: Rounding | None = None
    errors: Mapping[int, Tensor] = field(default_factory=dict)

    def at(self, problems: slice) -> Prepared:
        """Some of the problems."""
        intervals = [(lower[problems], upper[problems]) for lower, upper in self.intervals]
        lines = {i: x.at(problems) for i, x in self.lines.items()}
        rounding = None if self.rounding is None else self.rounding.at(problems)
        errors = {i: error[problems] for i, error in self.errors.items()}
        return Prepared(self.network, self.box[problems], intervals, lines, rounding, errors)

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
    late: Late = never,
    sound_for: torch.dtype | None = None,
    hardware: bool = False,
) -> Prepared:
    """Bound every pre-activation, in order.

    backward: refine interval arithmetic by backward substitution (CROWN); otherwise intervals alone (CROWN-IBP).
    neurons: "needed" refines neurons that the interval leaves unstable and that are not grafted, and bounds a ReLU that
        turns out stable on the side that shows it only; "all" refines both bounds of every neuron.
    layers: bounds known from elsewhere, by activation name; they are taken as they are.
    late: asked now and then; once it holds, what is left keeps the bounds of interval arithmetic.
    sound_for: make bounds that hold in real numbers (see `bounds.sound`); the network and the box are of double
        precision, and the bounds of neurons are numbers of this type, in which somebody searches with them.
    hardware: of the network as float32 hardware evaluates it. For sound bounds.
    """
    rounding: Rounding | None = None
    exact = interval_is_exact(network)
    readers: dict[int, list[Activation]] = {}
    for _, act in network.activations():
        readers.setdefault(act.inputs[0], []).append(act)
    intervals: list[Interval] = []
    lines: dict[int, Lines] = {}
    errors: dict[int, Tensor] = {}
    off: dict[int, Tensor] = {}  # how far hardware is
    inner: list[Tensor] | None = None

    def layer(i: int) -> Layer:
        nonlocal inner
        inner = evaluate(network, box.centre) if inner is None else inner
        return Layer(network, i, readers.get(i, []), intervals, lines, inner[i], late, errors)

    def widened(i: int, interval: Interval) -> Interval:
        """By what rounding, and the hardware, may add to sound bounds."""
        if rounding is None or sound_for is None or i == 0:
            return interval
        slack = rounding.slack(i) + off[i] if i in off else rounding.slack(i)
        return outward(interval, slack, sound_for if i in readers else torch.float64)

    def factor(i: int, others: Sequence[Interval]) -> Interval:
        """A factor of a product, tightened where it and all others vary: elsewhere the product is a line."""
        wanted = torch.stack([_varies(*interval) for interval in (intervals[i], *others)]).all(0)
        return widened(i, layer(i).both(guard(*intervals[i]), wanted))

    def mixtures(i: int, node: Planar) -> list[Interval]:
        """The intervals of the mixtures of its inputs that a product or quotient asks for."""
        before, found = [intervals[j] for j in node.inputs], []
        wanted = torch.stack([_varies(*interval) for interval in before]).all(0)
        free = torch.full_like(before[0][0], torch.inf)
        for mixed in node.mixed(*before):
            errors[i] = mixed  # in the place of its plane
            interval = layer(i).both((-free, free), wanted)
            if rounding is not None:
                interval = outward(interval, rounding.through(node, None, before[0], mixed).slack(i), torch.float64)
            found.append(interval)
        return found

    for i, node in enumerate(network.nodes):
        if isinstance(node, Planar):
            for j in dict.fromkeys(node.inputs) if backward else ():
                if not exact[j]:
                    intervals[j] = factor(j, [intervals[k] for k in node.inputs if k != j])
            errors[i] = node.plane(*(intervals[j] for j in node.inputs), mixtures=mixtures(i, node) if backward else ())
        lb, ub = interval_step(node, [intervals[j] for j in node.inputs], box)
        if isinstance(node, Activation):
            pre = intervals[node.inputs[0]]
            lb, ub = unbounded_like(pre, (lb, ub))
            lines[i] = relax(node, *pre)
        error = evaluation_error(node, [intervals[j] for j in node.inputs]) if hardware and node.inputs else None
        if error is not None:
            off[i] = error
            if isinstance(node, Planar):
                errors[i][:, -1] += error
            else:
                errors[i] = error
        if rounding is not None and node.inputs:
            rounding = rounding.through(node, lines.get(i), intervals[node.inputs[0]], errors.get(i))
        elif sound_for is not None:
            rounding = Rounding.of(network, (lb, ub))
        known = [layers[act.name] for act in readers.get(i, []) if layers is not None and act.name in layers]
        if known:
            lb, ub = guard(*(end.to(box.lower) for end in known[0]))
        elif i in readers:
            lb, ub = guard(lb, ub)
            if backward and not exact[i]:
                lb, ub = layer(i).refined((lb, ub), everything=neurons == "all")
        intervals.append(widened(i, (lb, ub)))
    return Prepared(network, box, intervals, lines, rounding, errors)


def _varies(lower: Tensor, upper: Tensor) -> Tensor:
    """Which neurons have an interval that is more than a number with its rounding error: (B, *shape), boolean."""
    size = torch.maximum(lower.abs(), upper.abs()).flatten(1).amax(1).reshape(-1, *[1] * (lower.ndim - 1))
    return ~(upper - lower <= NEGLIGIBLE * size)


def specification_bounds(prepared: Prepared, C: Tensor, record: dict[int, Tensor] | None = None) -> Tensor:
    """Lower bounds of C f(x) over each box: C (B, G, S, n) -> (B, G, S).

    record: see `Substitution`; record[0] becomes the coefficients of the network's input-like root, whose signs tell
    the corner where the bound is attained.
    """
    network = prepared.network
    path = plan(network, network.output)
    relaxed = Relaxed(prepared.lines, prepared.intervals[path.root], errors=prepared.errors)
    walk = Substitution(network, path, relaxed, None, record)
    rows, const = walk.to_root(Rows(C), C.new_zeros(C.shape[:3]), network.output)
    if record is not None:
        record[0] = rows.data
    bound = const + walk.minimum(rows)
    if prepared.rounding is None:
        return bound
    return bound - (C.abs() * prepared.rounding.slack(network.output)[:, None, None]).sum(-1)


@dataclass(frozen=True, eq=False)
class Layer:
    """The node `target`, read by activations, over earlier nodes whose intervals and lines are known.

    inner: (B, *shape), the node's value at the centre of each box. late: once it holds, nothing more is tightened.
    errors: see `Relaxed`.
    """

    network: Network
    target: int
    readers: list[Activation]
    intervals: list[Interval]
    lines: dict[int, Lines]
    inner: Tensor
    late: Late = never
    errors: Mapping[int, Tensor] = field(default_factory=dict)

    def refined(self, interval: Interval, *, everything: bool) -> Interval:
        """Both bounds of every neuron, or what the activations need of it.

        One bound settles a ReLU: a neuron that is positive somewhere in the box can be stable only by a positive lower
        bound, and the upper one then does not matter. So the telling side comes first, and the other side only for
        neurons that are unstable still.
        """
        path, work = plan(self.network, self.target), self._work()
        if everything:
            return self.both(interval, torch.ones_like(self.inner, dtype=torch.bool))
        index, real = self._needed(interval)
        if not all(act.curve.one_sided for act in self.readers):
            return self._tightened(interval, index, self._both(index) * real, path.floats, work)
        telling = torch.where(self.inner.flatten(1) > 0, 1.0, -1.0).to(self.inner)
        interval = self._tightened(interval, index, telling.gather(1, index).unsqueeze(1) * real, path.floats, work)
        index, real = self._needed(interval)
        return self._tightened(interval, index, -telling.gather(1, index).unsqueeze(1) * real, path.floats, work)

    def both(self, interval: Interval, wanted: Tensor) -> Interval:
        """Both bounds of the wanted neurons, (B, *shape), boolean."""
        index, real = positions(wanted.flatten(1))
        signs = self._both(index) * real.unsqueeze(1).to(self.inner)
        return self._tightened(interval, index, signs, plan(self.network, self.target).floats, self._work())

    def _work(self) -> Work:
        """Bounds by backward substitution."""
        path = plan(self.network, self.target)
        kept: dict[int, tuple[slice, Relaxed]] = {}  # by thread
        kernels: Cache = {}

        def work(problems: slice, index: Tensor, signs: Tensor) -> Tensor:
            before, relaxed = kept.get(get_ident(), (None, None))
            if relaxed is None or before != problems:
                lower, upper = self.intervals[path.root]
                below = {i: line.at(problems) for i, line in self.lines.items() if i in path.windows}
                errors = {i: error[problems] for i, error in self.errors.items() if i in path.windows}
                relaxed = Relaxed(below, (lower[problems], upper[problems]), kernels=kernels, errors=errors)
                kept[get_ident()] = problems, relaxed
            return neuron_bounds(self.network, path, relaxed, index, signs)

        return work

    def _needed(self, interval: Interval) -> tuple[Tensor, Tensor]:
        """Places of the neurons that some activation finds unstable, (B, S); 1 for them, 0 for fillers, (B, 1, S)."""
        wanted = torch.stack([unstable(act, *interval) for act in self.readers]).any(0).flatten(1)
        index, real = positions(wanted)
        return index, real.unsqueeze(1).to(self.inner)

    def _both(self, index: Tensor) -> Tensor:
        signs = torch.tensor([1.0, -1.0], dtype=self.inner.dtype, device=self.inner.device)
        return signs[:, None].expand(len(index), 2, index.shape[1])

    def _tightened(self, interval: Interval, index: Tensor, signs: Tensor, floats: int, bounds: Work) -> Interval:
        """The interval cut with the bounds of these neurons: index (B, S), signs (B, G, S), 0 for none at all."""
        shape = interval[0].shape
        lb, ub = (end.flatten(1).clone() for end in interval)
        counts = (signs != 0).any(1).sum(1).tolist()  # real rows stand before fillers

        def work(problems: slice, rows: slice) -> None:
            rows = slice(rows.start, min(rows.stop, max(counts[problems])))
            if self.late() or rows.start >= rows.stop:
                return
            here, sign = index[problems, rows], signs[problems, :, rows]
            bound = bounds(problems, here, sign)
            low = torch.where(sign > 0, guard_lower(bound), -torch.inf).amax(1)
            high = torch.where(sign < 0, guard_upper(-bound), torch.inf).amin(1)
            lb[problems].scatter_reduce_(1, here, low, "amax")
            ub[problems].scatter_reduce_(1, here, high, "amin")

        chunked(len(lb), index.shape[1], floats * signs.shape[1] * lb.element_size(), lb.device, work, parallel=True)
        return lb.view(shape), ub.view(shape)
