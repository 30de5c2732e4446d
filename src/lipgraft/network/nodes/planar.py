"""Products, quotients, powers and the like, neither affine nor activations: each lies between two parallel planes.

A plane is found anew for every box, from the intervals of the node's inputs. The smaller they are, the closer are the
planes: halving a box brings them four times as close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lipgraft.activations.curve import Interval, OnnxWriter
from lipgraft.network.nodes.node import Node
from lipgraft.network.window import Window

ULPS = 16  # of the largest number that a plane is computed from: more than its few roundings are off


@dataclass(frozen=True, eq=False)
class Planar(Node):
    """An element-wise function of its inputs that lies between two parallel planes on every finite box."""

    @property
    def terms(self) -> int:
        """As many as would err like a power."""
        return 31

    def absolute(self, *inputs: Tensor, constant: bool = True) -> Tensor:
        raise self._cannot("be bounded by magnitudes alone")

    def window(self, window: Window) -> Window:
        return window

    def plane(self, *inputs: Interval, mixtures: Sequence[Interval] = ()) -> Tensor:
        """The slope of each input, a constant and an error: (B, inputs + 2, *shape), from ends of (B, *shape) each.

        On these intervals |value - (slopes . inputs + constant)| <= error, rounding of the plane included. The error
        is infinite where there is no such plane. mixtures: the intervals of what `mixed` asks for, where anybody knows.
        """
        raise self._cannot("be enclosed")

    def mixed(self, *inputs: Interval) -> list[Tensor]:
        """Mixtures of the inputs whose intervals make the plane closer, as planes without error."""
        return []


@dataclass(frozen=True, eq=False)
class Product(Planar):
    """x y, of two nodes of one shape."""

    def forward(self, *inputs: Tensor) -> Tensor:
        x, y = inputs
        return x * y

    def interval(self, *inputs: Interval) -> Interval:
        """The least and greatest of the four products of ends."""
        (xl, xu), (yl, yu) = inputs
        corners = torch.stack([xl * yl, xl * yu, xu * yl, xu * yu])
        return _unbounded_nan(corners.amin(0), corners.amax(0))

    def plane(self, *inputs: Interval, mixtures: Sequence[Interval] = ()) -> Tensor:
        """x y = b x + a y - a b + (x - a)(y - b), with a and b in the middles of the intervals.

        The last product lies between -v ** 2 / 4 and u ** 2 / 4, with u and v the mixtures' largest absolute values.
        """
        (a, x_radius), (b, y_radius) = (_ball(ends) for ends in inputs)
        most = least = x_radius * y_radius
        if mixtures:
            u, v = (torch.maximum(lower.abs(), upper.abs()) for lower, upper in mixtures)
            most, least = torch.minimum(most, u.square() / 4), torch.minimum(least, v.square() / 4)
        size = (a.abs() + x_radius) * (b.abs() + y_radius)
        return _stacked([b, a], (most - least) / 2 - a * b, (most + least) / 2, size)

    def mixed(self, *inputs: Interval) -> list[Tensor]:
        """u = s (x - a) + (y - b) / s and v = s (x - a) - (y - b) / s, where s gives both terms one radius.

        Where x and y depend on the same inputs, one of them or both vary less than their terms do.
        """
        (a, x_radius), (b, y_radius) = (_ball(ends) for ends in inputs)
        s = (y_radius / x_radius).sqrt()
        s = torch.where(s.isfinite() & (s > 0), s, 1.0)
        none = torch.zeros_like(s)
        return [torch.stack([s, sign / s, -s * a - sign * b / s, none], 1) for sign in (1.0, -1.0)]

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        return writer.operator("Mul", inputs, name)


@dataclass(frozen=True, eq=False)
class Quotient(Planar):
    """x / y, of two nodes of one shape. Unbounded where y may be zero."""

    def forward(self, *inputs: Tensor) -> Tensor:
        x, y = inputs
        return x / y

    def interval(self, *inputs: Interval) -> Interval:
        (xl, xu), (yl, yu) = inputs
        corners = torch.stack([xl / yl, xl / yu, xu / yl, xu / yu])
        around = (yl <= 0) & (yu >= 0)
        low, high = torch.where(around, -torch.inf, corners.amin(0)), torch.where(around, torch.inf, corners.amax(0))
        return _unbounded_nan(low, high)

    def mixed(self, *inputs: Interval) -> list[Tensor]:
        """x - q y, with q the quotient of the middles: where x and y grow together, it varies less than either."""
        (a, _), (b, _) = (_ball(ends) for ends in inputs)
        q, zero = a / b, torch.zeros_like(a)
        return [torch.stack([zero + 1.0, -q, zero, zero], 1)]

    def plane(self, *inputs: Interval, mixtures: Sequence[Interval] = ()) -> Tensor:
        """x / y = q + (x - q y) / b - (x - q y)(y - b) / (b y), with b the middle of y's interval."""
        (yl, yu), ((a, x_radius), (b, y_radius)) = inputs[1], (_ball(ends) for ends in inputs)
        q = a / b
        reach = x_radius + q.abs() * y_radius
        for lower, upper in mixtures:
            reach = torch.minimum(reach, torch.maximum(lower.abs(), upper.abs()))
        least = torch.where(yl > 0, yl, torch.where(yu < 0, -yu, 0.0))
        size = (a.abs() + x_radius + q.abs() * (b.abs() + y_radius)) / least
        return _stacked([1 / b, -q / b], q, reach * y_radius / (b.abs() * least), size)

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        return writer.operator("Div", inputs, name)


@dataclass(frozen=True, eq=False)
class Power(Planar):
    """x ** exponent, an integer other than 0 and 1; 1 / x is the power -1. Negative ones are unbounded around zero."""

    exponent: int

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].pow(self.exponent)

    def interval(self, *inputs: Interval) -> Interval:
        """Powers are monotone on either side of zero."""
        (lower, upper) = inputs[0]
        ends = self.forward(lower), self.forward(upper)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        around = (lower <= 0) & (upper >= 0)
        if self.exponent < 0:
            low, high = torch.where(around, -torch.inf, low), torch.where(around, torch.inf, high)
        elif self.exponent % 2 == 0:
            low = torch.where(around, 0.0, low)
        return _unbounded_nan(low, high)

    def plane(self, *inputs: Interval, mixtures: Sequence[Interval] = ()) -> Tensor:
        """A line with the chord's slope s: x ** n - s x has its extremes at the ends or where n x ** (n - 1) = s."""
        (lower, upper), n = inputs[0], self.exponent
        ends, width = (self.forward(lower), self.forward(upper)), upper - lower
        slope = torch.where(width > 0, (ends[1] - ends[0]) / torch.where(width > 0, width, 1.0), 0.0)
        there = (slope / n).abs().pow(1.0 / (n - 1))
        heights = [end - slope * x for end, x in zip(ends, (lower, upper), strict=True)]
        for turn in (there, -there):
            x = torch.minimum(torch.maximum(turn, lower), upper)
            heights.append(self.forward(x) - slope * x)
        low, high = torch.stack(heights).amin(0), torch.stack(heights).amax(0)
        size = torch.maximum(ends[0].abs(), ends[1].abs()) + slope.abs() * torch.maximum(lower.abs(), upper.abs())
        error = (high - low) / 2
        if n < 0:
            error = torch.where((lower <= 0) & (upper >= 0), torch.inf, error)
        return _stacked([slope], (low + high) / 2, error, abs(n) * size)

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        exponent = writer.constant(f"{name}_exponent", torch.tensor(float(self.exponent)))
        return writer.operator("Pow", [*inputs, exponent], name)


@dataclass(frozen=True, eq=False)
class Sine(Planar):
    """sin x. Its second derivative is at most 1, and so is its slope."""

    operator: ClassVar[str] = "Sin"

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].sin()

    def slope(self, x: Tensor) -> Tensor:
        return x.cos()

    def interval(self, *inputs: Interval) -> Interval:
        """The value in the middle, give or take the radius, and never beyond 1."""
        middle, radius = _ball(inputs[0])
        value = self.forward(middle)
        low, high = (value - radius).clamp(min=-1.0), (value + radius).clamp(max=1.0)
        return _unbounded_nan(low, high)

    def plane(self, *inputs: Interval, mixtures: Sequence[Interval] = ()) -> Tensor:
        """The tangent in the middle, off by up to half the radius squared; on wide intervals all between -1 and 1."""
        middle, radius = _ball(inputs[0])
        value, slope, error = self.forward(middle), self.slope(middle), radius.square() / 2
        narrow = error < 1
        slope, constant = torch.where(narrow, slope, 0.0), torch.where(narrow, value - slope * middle, 0.0)
        return _stacked([slope], constant, error.clamp(max=1.0), 1.0 + middle.abs() + radius)

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        return writer.operator(self.operator, inputs, name)


@dataclass(frozen=True, eq=False)
class Cosine(Sine):
    """cos x."""

    operator: ClassVar[str] = "Cos"

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].cos()

    def slope(self, x: Tensor) -> Tensor:
        return -x.sin()


@dataclass(frozen=True, eq=False)
class Floor(Planar):
    """The largest whole number that is not above x: a constant where the interval reaches no other."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].floor()

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        return _unbounded_nan(lower.floor(), upper.floor())

    def plane(self, *inputs: Interval, mixtures: Sequence[Interval] = ()) -> Tensor:
        """x - 1/2, give or take 1/2."""
        low, high = self.interval(*inputs)
        jumps = (low != high).to(low.dtype)
        size = torch.maximum(low.abs(), high.abs()) + 1.0
        return _stacked([jumps], torch.where(low == high, low, -0.5), jumps / 2, size)

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        return writer.operator("Floor", inputs, name)


@dataclass(frozen=True, eq=False)
class Sign(Planar):
    """-1, 0 or 1: a constant where the interval does not reach zero."""

    def forward(self, *inputs: Tensor) -> Tensor:
        signs: Tensor = _Sign.apply(inputs[0])  # type: ignore[no-untyped-call]
        return signs

    def interval(self, *inputs: Interval) -> Interval:
        """What has no bounds may be no number, and has no sign."""
        lower, upper = inputs[0]
        finite = lower.isfinite() & upper.isfinite()
        return torch.where(finite, lower.sign(), -torch.inf), torch.where(finite, upper.sign(), torch.inf)

    def plane(self, *inputs: Interval, mixtures: Sequence[Interval] = ()) -> Tensor:
        """The middle of the signs."""
        low, high = self.interval(*inputs)
        return _stacked([torch.zeros_like(low)], (low + high) / 2, (high - low) / 2, torch.ones_like(low))

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        return writer.operator("Sign", inputs, name)


class _Sign(torch.autograd.Function):
    """The sign of x (B, ...). Its own gradient is zero, and no attack would find a way.

    So it is that of m x / (m + |x|), with m the mean of |x| over a row: signs that are close to their jump count most.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x.isnan(), x, x.sign())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        size: Tensor = ctx.saved_tensors[0].abs()
        mean = size.mean(tuple(range(1, size.ndim)), keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)
        return gradient / (1 + size / mean).square()


def _ball(ends: Interval) -> Interval:
    """A point in the middle of an interval and how far the ends are from it."""
    lower, upper = ends
    middle = lower + (upper - lower) / 2
    return middle, torch.maximum(upper - middle, middle - lower)


def _stacked(slopes: list[Tensor], constant: Tensor, error: Tensor, size: Tensor) -> Tensor:
    """A plane as `Planar.plane` returns it. size: of the largest number that was rounded."""
    kind = torch.finfo(size.dtype)
    error = error + ULPS * (kind.eps * size + kind.tiny)
    known = torch.stack([*slopes, constant, error]).isfinite().all(0)
    parts = [torch.where(known, part, 0.0) for part in (*slopes, constant)]
    return torch.stack([*parts, torch.where(known, error, torch.inf)], 1)


def _unbounded_nan(low: Tensor, high: Tensor) -> Interval:
    """Zero times infinity is no number, and bounds nothing."""
    unknown = low.isnan() | high.isnan()
    return torch.where(unknown, -torch.inf, low), torch.where(unknown, torch.inf, high)
