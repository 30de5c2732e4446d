"""Backward substitution: from rows at a node to a lower bound over the box.

A row is a linear function of a node's values, sum(rows * value) + const. Going back through an affine node rewrites it
in terms of the node's inputs; going back through an activation replaces the value by the line that keeps the function
a *lower* bound. At the box the minimum is known. Rows are (B, G, S, *block): B problems, G groups that look at the same
neurons (the neuron and its negative, for both bounds in one pass), S rows; block is the layer or a window of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipgraft.bounds import fused, own_lines
from lipgraft.bounds.geometry import Plan
from lipgraft.bounds.grouped import Grouped
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.own_lines import Shift
from lipgraft.bounds.relaxations import Lines
from lipgraft.bounds.windows import cut, flattened, inside, pick, spread, widen
from lipgraft.network.graph import Activation, Add, Affine, Network, Planar
from lipgraft.network.nodes import Cache
from lipgraft.network.window import Window, channels_last

if TYPE_CHECKING:
    from lipgraft.bounds.corners import Hinged


@dataclass(frozen=True, eq=False)
class Above:
    """Planes above U neurons of an activation in each of B problems, one row each: slope (G, U, n_j) by source j.

    column: (B, U), the neurons' places in their layer; used: (B, U), one where the plane stands in for the upper line
    and zero elsewhere; const: (B, U); grouped: the problems by the groups of the slopes.
    """

    column: Tensor
    used: Tensor
    slope: Mapping[int, Tensor]
    const: Tensor
    grouped: Grouped


@dataclass(frozen=True, eq=False)
class Relaxed:
    """What a backward pass needs of one batch of problems: the lines of each activation and the interval of the root.

    shifts: by the activation's position. Only for rows on whole layers, one per problem.
    errors: (B, *shape) by position, how far a node's value may be from what it computes of its inputs; of a product or
        power its `Planar.plane`.
    ball: the root's centre and radius, where somebody knows them already.
    planes: above neurons, by the activation's position. Only for rows on whole layers, one per problem.
    hinged: planes around curves, whose mean slopes are among the lines, by position. As for planes.
    cuts keeps windows already cut out of these tensors, and kernels rearranged weights, for all chunks of rows.
    """

    lines: Mapping[int, Lines]
    root: Interval
    shifts: Mapping[int, Shift] = field(default_factory=dict)
    errors: Mapping[int, Tensor] = field(default_factory=dict)
    ball: Interval | None = None
    planes: Mapping[int, Above] = field(default_factory=dict)
    hinged: Mapping[int, Hinged] = field(default_factory=dict)
    cuts: dict[tuple[int, str, Window, bool], Tensor] = field(default_factory=dict)
    kernels: Cache = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Rows:
    """data: (B, G, S, *block); window None: block is the layer; clean: nothing hangs over the layer's edge.

    spare: nobody else reads data, so it may be overwritten.
    """

    data: Tensor
    window: Window | None = None
    clean: bool = True
    spare: bool = False


class Substitution:
    """One pass of rows from a target back to the root."""

    def __init__(
        self,
        network: Network,
        plan: Plan,
        relaxed: Relaxed,
        place: Tensor | None,
        record: dict[int, Tensor] | None = None,
    ) -> None:
        """place: (B, S), the grid place of each row's neuron; None when the target is a vector.

        record: filled with the coefficients of each activation's output, by the activation's position.
        """
        self.network, self.plan, self.relaxed, self.place, self.record = network, plan, relaxed, place, record

    def lower_bound(self, rows: Rows, const: Tensor, start: int) -> Tensor:
        """The minimum of the rows over the box: (B, G, S). rows stand at node `start`; const: (B, G, S)."""
        root_rows, const = self.to_root(rows, const, start)
        return const + self.minimum(root_rows)

    def to_root(self, rows: Rows, const: Tensor, start: int) -> tuple[Rows, Tensor]:
        """The rows as linear functions of the root's values, and their constants."""
        waiting: dict[int, Rows] = {}
        self._arrive(waiting, start, rows)
        for i in range(start, self.plan.root, -1):
            here = waiting.pop(i, None)
            if here is not None:
                const = self._through(i, here, const, waiting)
        return waiting[self.plan.root], const

    def to_sources(
        self, rows: Rows, const: Tensor, start: int, through: Collection[int]
    ) -> tuple[dict[int, Rows], Tensor]:
        """The rows as linear functions of the nodes that are met when these, affine ones, are left behind."""
        waiting: dict[int, Rows] = {}
        self._arrive(waiting, start, rows)
        for i in sorted(through, reverse=True):
            const = self._through(i, waiting.pop(i), const, waiting)
        return waiting, const

    def _through(self, i: int, rows: Rows, const: Tensor, waiting: dict[int, Rows]) -> Tensor:
        node = self.network.nodes[i]
        if isinstance(node, Planar):
            return self._planar(i, node, rows, const, waiting)
        if i in self.relaxed.errors:
            const = const - _dot(self._cleaned(i, rows).abs(), self._values(i, "error", self.relaxed.errors[i], rows))
        if isinstance(node, Activation):
            if self.record is not None:
                self.record[i] = rows.data
            if i in self.relaxed.planes:
                rows, const = self._above(self.relaxed.planes[i], rows, const, waiting)
            if i in self.relaxed.hinged:
                const = self._bent(self.relaxed.hinged[i], rows, const, waiting)
            rows, const = self._activation(i, rows, const)
            self._arrive(waiting, node.inputs[0], rows)
        elif isinstance(node, Add):
            for j in node.inputs:
                self._arrive(waiting, j, replace(rows, spare=False))
        elif isinstance(node, Affine):
            rows, const = self._affine(i, node, rows, const)
            self._arrive(waiting, node.inputs[0], rows)
        return const

    def _planar(self, i: int, node: Planar, rows: Rows, const: Tensor, waiting: dict[int, Rows]) -> Tensor:
        """Through the plane; every unit of a coefficient costs the plane's error."""
        data = self._cleaned(i, rows)
        *slopes, constant, error = self.relaxed.errors[i].unbind(1)
        const = const + _dot(data, self._values(i, "constant", constant, rows))
        const = const - _dot(data.abs(), self._values(i, "error", error, rows))
        for number, (j, slope) in enumerate(zip(node.inputs, slopes, strict=True)):
            back = data * self._values(i, f"slope {number}", slope, rows)
            self._arrive(waiting, j, Rows(back, rows.window, spare=True))
        return const

    def _arrive(self, waiting: dict[int, Rows], j: int, rows: Rows) -> None:
        """Bring rows into the shape planned for node j and add them to what already waits there."""
        window, shape = self.plan.windows[j], self.network.nodes[j].shape
        data, clean, spare = rows.data, rows.clean, rows.spare
        if rows.window is not None:
            if window is None:
                assert self.place is not None
                data = spread(data, rows.window, (shape[1], shape[2]), self.plan.grid, self.place)
                clean = True
            else:
                data = widen(data, rows.window, window)
        if j in waiting:
            data, clean, spare = data + waiting[j].data, clean and waiting[j].clean, True
        waiting[j] = Rows(data, window, clean, spare)

    def _cleaned(self, i: int, rows: Rows) -> Tensor:
        """The coefficients with everything over the layer's edge set to zero."""
        if rows.clean or rows.window is None:
            return rows.data
        assert self.place is not None
        shape = self.network.nodes[i].shape
        return rows.data * inside((shape[1], shape[2]), rows.window, self.plan.grid, self.place, rows.data.dtype)

    def _values(self, i: int, name: str, layer: Tensor, rows: Rows) -> Tensor:
        """A layer's tensor (B, *shape) or (B, G, S, *shape), laid out to multiply rows at node i."""
        shape, window = self.network.nodes[i].shape, rows.window
        if window is None:
            if layer.ndim == len(shape) + 3:
                return layer
            if channels_last(rows.data):  # tensors in one order of memory multiply several times faster
                layer = layer.contiguous(memory_format=torch.channels_last)
            return layer[:, None, None]
        assert self.place is not None
        last = channels_last(rows.data)
        picked = pick(self._cut(i, name, layer, window, last), self.place)
        if last:
            return picked.view(*picked.shape[:3], *window.size, shape[0]).movedim(-1, -3)
        return picked.view(*picked.shape[:3], shape[0], *window.size)

    def _cut(self, i: int, name: str, layer: Tensor, window: Window, last: bool = False) -> Tensor:
        """The windows of every place, cut once: (B, places, K)."""
        key = (i, name, window, last)
        if key not in self.relaxed.cuts:
            self.relaxed.cuts[key] = cut(layer, window, self.plan.grid, last=last)
        return self.relaxed.cuts[key]

    def _above(self, above: Above, rows: Rows, const: Tensor, waiting: dict[int, Rows]) -> tuple[Rows, Tensor]:
        """Negative coefficients of neurons with a plane go on to what the neurons read; what is left takes lines."""
        flat = rows.data.flatten(1)
        negative = flat.gather(1, above.column).clamp(max=0) * above.used
        for j, slope in above.slope.items():
            back = above.grouped.product(negative, slope).view(*rows.data.shape[:3], *self.network.nodes[j].shape)
            self._arrive(waiting, j, Rows(back, spare=True))
        data = flat.scatter_add(1, above.column, -negative).view(rows.data.shape)
        return replace(rows, data=data, spare=True), const + (negative * above.const).sum(1).view(const.shape)

    def _bent(self, hinged: Hinged, rows: Rows, const: Tensor, waiting: dict[int, Rows]) -> Tensor:
        """What planes around curves add to the rows at the root, beside their mean slopes."""
        root = self.plan.root
        back, constant, bend = hinged.towards(rows.data)
        self._arrive(waiting, root, Rows(back[:, None, None], spare=True))
        if self.record is not None:
            self.record[root] = self.record[root] + bend if root in self.record else bend
        return const + constant.view(const.shape)

    def _activation(self, i: int, rows: Rows, const: Tensor) -> tuple[Rows, Tensor]:
        """Positive coefficients take the lower line, negative ones the upper line."""
        lines, data, window = self.relaxed.lines[i], rows.data, rows.window
        shared = lines.lower_slope.ndim == 1 + len(self.network.nodes[i].shape)  # by all rows of a problem
        if shared and fused.usable(data, lines.lower_slope, lines.upper_slope):
            return self._activation_fused(i, rows, const)
        own = None if shared else own_lines.apply(data, lines, self.relaxed.shifts.get(i))
        if own is not None:
            return Rows(own[0], window, True, True), const + own[1]
        lower = self._values(i, "lower_slope", lines.lower_slope, rows)
        gap = self._values(i, "slope_gap", lines.upper_slope - lines.lower_slope, rows)
        # data * lower + min(data, 0) * (upper - lower): few passes over the largest tensors there are.
        negative = data.clamp(max=0)
        overwrite = rows.spare and self.record is None and not (data.requires_grad or lower.requires_grad)
        positive = None if lines.lower_intercept is None else data - negative
        out = data.mul_(lower) if overwrite else data * lower
        out = torch.addcmul(out, negative, gap) if out.requires_grad else out.addcmul_(negative, gap)
        if lines.upper_intercept is not None:
            high = self._values(i, "upper_intercept", lines.upper_intercept, rows)
            const = const + _dot(negative, high)
        if positive is not None and lines.lower_intercept is not None:
            const = const + _dot(positive, self._values(i, "lower_intercept", lines.lower_intercept, rows))
        return Rows(self._shifted(i, out), window, True, True), const

    def _shifted(self, i: int, data: Tensor) -> Tensor:
        return self.relaxed.shifts[i].added(data) if i in self.relaxed.shifts else data

    def _activation_fused(self, i: int, rows: Rows, const: Tensor) -> tuple[Rows, Tensor]:
        lines, data, window = self.relaxed.lines[i], rows.data, rows.window
        zero = torch.zeros_like(lines.upper_slope) if lines.upper_intercept is None else lines.upper_intercept
        out, sums = fused.relax(
            data.reshape(-1, math.prod(data.shape[3:])),
            self._lines_of_rows(data, window),
            self._table(i, "lower_slope", lines.lower_slope, window),
            self._table(i, "slope_gap", lines.upper_slope - lines.lower_slope, window),
            self._table(i, "upper_intercept", zero, window),
            None if lines.lower_intercept is None else self._table(i, "lower_intercept", lines.lower_intercept, window),
        )
        return Rows(self._shifted(i, out.view(data.shape)), window, True), const + sums.view(const.shape)

    def _table(self, i: int, name: str, layer: Tensor, window: Window | None) -> Tensor:
        """A layer's tensor (B, *shape) as lines that rows can share: (B, K), or (B * places, K) for windows."""
        if window is None:
            return layer.reshape(len(layer), -1)
        return self._cut(i, name, layer, window).flatten(0, 1)

    def _lines_of_rows(self, data: Tensor, window: Window | None) -> Tensor:
        """Which line of the tables belongs to each row: (B * G * S,)."""
        batch, groups, count = data.shape[:3]
        line = torch.arange(batch, device=data.device)[:, None]
        if window is not None:
            assert self.place is not None
            line = line * (self.plan.grid[0] * self.plan.grid[1]) + self.place
        return line[:, None].expand(batch, groups, count).reshape(-1)

    def _affine(self, i: int, node: Affine, rows: Rows, const: Tensor) -> tuple[Rows, Tensor]:
        data, window, kernels = self._cleaned(i, rows), rows.window, self.relaxed.kernels
        if node.constant is not None:
            const = const + self._weighed(i, node.constant, data, rows)
        if window is None:
            back = node.transpose(data, self.network.nodes[node.inputs[0]].shape, kernels)
            return Rows(back, spare=not node.is_view), const
        back = node.transpose_window(data, lambda name, value: self._constant(i, name, value, rows), kernels)
        return Rows(back, node.window(window), not node.overhangs, not node.is_view), const

    def _weighed(self, i: int, constant: Tensor, data: Tensor, rows: Rows) -> Tensor:
        """sum over the block of rows times a constant that broadcasts to node i's shape: (B, G, S)."""
        shape = self.network.nodes[i].shape
        if constant.shape == shape and len(shape) == 1:
            return data @ constant
        if constant.shape == (shape[0], 1, 1) and len(shape) == 3:  # a number per channel
            bias = constant.flatten()
            return data.sum((-2, -1)) @ bias if rows.window is None else _total(data, bias)
        return _dot(data, self._constant(i, "constant", constant, rows))

    def _constant(self, i: int, name: str, value: Tensor, rows: Rows) -> Tensor:
        """A constant that broadcasts to node i's shape, laid out to multiply rows there."""
        if rows.window is None or value.numel() == 1 or value.shape[-2:] == (1, 1):
            return value
        assert self.place is not None
        return self._values(i, name, value.expand(len(self.place), *self.network.nodes[i].shape), rows)

    def minimum(self, rows: Rows) -> Tensor:
        """min over the box of sum(rows * x) = rows . centre - |rows| . radius, (B, G, S)."""
        root, data = self.plan.root, rows.data
        middle, half = ball(self.relaxed.root) if self.relaxed.ball is None else self.relaxed.ball
        if fused.usable(data):
            centre, radius = (self._table(root, name, t, rows.window) for name, t in _named(middle, half))
            flat = data.reshape(-1, math.prod(data.shape[3:]))
            return fused.minimum(flat, self._lines_of_rows(data, rows.window), centre, radius).view(data.shape[:3])
        fixed = not (middle.requires_grad or half.requires_grad)
        if rows.window is None and data.shape[1:3] == (1, 1) and fixed:
            found: Tensor = _Minimum.apply(data.flatten(1), middle.flatten(1), half.flatten(1))  # type: ignore[no-untyped-call]
            return found.view(data.shape[:3])
        centre, radius = (self._values(root, name, t, rows) for name, t in _named(middle, half))
        return _dot(data, centre) - _dot(data.abs(), radius)


class _Minimum(torch.autograd.Function):
    """min over boxes of one row each: rows, centre, radius (B, K) -> (B,). Gradients reach the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, centre: Tensor, radius: Tensor) -> Tensor:
        ctx.save_for_backward(rows, centre, radius)
        if fused.available(rows):
            return fused.minimum(rows, torch.arange(len(rows), device=rows.device), centre, radius)
        return (rows * centre).sum(1) - rows.abs().mul_(radius).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out: Tensor) -> tuple[Tensor | None, ...]:
        rows, centre, radius = ctx.saved_tensors
        return torch.addcmul(centre, rows.sgn(), radius, value=-1).mul_(out[:, None]), None, None


def ball(box: Interval) -> Interval:
    """Centre and radius of boxes."""
    return (box[0] + box[1]) / 2, (box[1] - box[0]) / 2


def _named(centre: Tensor, radius: Tensor) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
    return ("centre", centre), ("radius", radius)


def _dot(rows: Tensor, values: Tensor) -> Tensor:
    """sum over the block of rows * values: (B, G, S, *block), broadcastable -> (B, G, S)."""
    # One row per problem: as a product its gradient would be a batch of outer products, which is slow.
    many = rows.shape[1] * rows.shape[2] > 1
    if many and values.shape[:3] == (len(rows), 1, 1) and values.shape[3:] == rows.shape[3:]:
        row, column = flattened(rows, 3, rows).flatten(1, 2), flattened(values, 3, rows).view(len(rows), -1, 1)
        return (row @ column).view(rows.shape[:3])
    return flattened(rows * values, 3, rows).sum(-1)


def _total(rows: Tensor, bias: Tensor) -> Tensor:
    """sum over the window of rows * bias, a number per channel: (B, G, S, C, a, b), (C,) -> (B, G, S)."""
    return flattened(rows, 3, rows) @ flattened(bias[:, None, None].expand(rows.shape[3:]), 0, rows)
