"""Exact extremes of networks built from scalar parts, in closed form and double precision.

Every such network is f(x) = sum over blocks of curve(inner(x)), where no two blocks read the same input. `inner` is a
number that is monotone in every input, so its range over a box is read off at two corners; `curve` is piecewise linear
in that number (or affine), so its extremes lie at its kinks and at the ends of the range. Blocks move independently, so
extremes of sums are sums of extremes, for outputs and for differences of outputs alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Inner = Callable[[Tensor], Tensor]
Curve = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Block:
    """curve(inner(x)), a vector of one number for each output.

    inner: (B, d) -> (B,), monotone. signs: (d,), 1 where it rises, -1 where it falls, 0 where it reads nothing.
    steepness: boxes' (lower, upper) -> the largest l1 norm of inner's gradient over each, (B,).
    curve: t (...) -> (..., n), linear between neighbouring kinks (K,), which are sorted.
    """

    inner: Inner
    signs: Tensor
    steepness: Callable[[Tensor, Tensor], Tensor]
    curve: Curve
    kinks: Tensor

    def corners(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Where inner is least and where it is greatest: (B, d) each."""
        rising = self.signs >= 0
        return torch.where(rising, lower, upper), torch.where(rising, upper, lower)

    def candidates(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The values of inner among which every extreme of the curve lies: (B, K + 2)."""
        least, most = (self.inner(corner)[:, None] for corner in self.corners(lower, upper))
        inside = torch.minimum(torch.maximum(self.kinks, least), most)
        return torch.cat([least, inside, most], 1)

    def place(self, lower: Tensor, upper: Tensor, t: Tensor) -> Tensor:
        """Points of the boxes where inner is t (B,): on the way from one corner to the other, by bisection. (B, d)."""
        first, last = self.corners(lower, upper)
        near, far = torch.zeros_like(t), torch.ones_like(t)
        for _ in range(60):
            middle = (near + far) / 2
            before = self.inner(torch.lerp(first, last, middle[:, None])) < t
            near, far = torch.where(before, middle, near), torch.where(before, far, middle)
        return torch.lerp(first, last, far[:, None]).clamp(lower, upper)

    def slopes(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The largest |derivative| of each output over the pieces of the curve that each box meets: (B, n)."""
        ends = self.candidates(lower, upper)
        least, most = ends[:, :1], ends[:, -1:]
        inner = self.kinks if len(self.kinks) else torch.zeros(1, dtype=torch.float64)
        edges = torch.cat([inner[:1] - 1, inner, inner[-1:] + 1])
        width = edges[1:] - edges[:-1]
        rise = self.curve(edges[:-1] + 0.75 * width) - self.curve(edges[:-1] + 0.25 * width)
        slope = (rise / (0.5 * width)[:, None]).abs()
        start, end = edges[:-1].clone(), edges[1:].clone()
        start[0], end[-1] = -torch.inf, torch.inf
        met = ((start < most) & (end > least)) | ((least == most) & (start <= least) & (end >= least))
        largest = torch.where(met[:, :, None], slope, 0.0).amax(1)
        return largest * self.steepness(lower, upper)[:, None]


def linear(weight: Tensor, curve: Curve, kinks: Sequence[float] = ()) -> Block:
    """A curve of weight . x, with weight (d,)."""
    norm = weight.abs().sum()
    return Block(
        lambda x: x @ weight,
        weight.sign(),
        lambda lower, upper: norm.expand(len(lower)),
        curve,
        torch.tensor(sorted(set(kinks)), dtype=torch.float64),
    )


def coordinate(i: int, inputs: int, curve: Curve, kinks: Sequence[float] = ()) -> Block:
    """A curve of one input."""
    weight = torch.zeros(inputs, dtype=torch.float64)
    weight[i] = 1.0
    return linear(weight, curve, kinks)


def always(value: Tensor, inputs: int) -> Block:
    """The same outputs (n,) everywhere."""
    nothing = torch.zeros(inputs, dtype=torch.float64)
    return linear(nothing, lambda t: value.expand(*t.shape, -1))


def least_differences(blocks: Sequence[Block], lower: Tensor, upper: Tensor) -> Tensor:
    """The least of output i - output j over each box: (B, n, n)."""
    total = torch.zeros((), dtype=torch.float64)
    for block in blocks:
        values = block.curve(block.candidates(lower, upper))
        total = total + (values[..., :, None] - values[..., None, :]).amin(1)
    return total


def output_range(blocks: Sequence[Block], lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest of every output over each box: (B, n) each."""
    least = most = torch.zeros((), dtype=torch.float64)
    for block in blocks:
        values = block.curve(block.candidates(lower, upper))
        least, most = least + values.amin(1), most + values.amax(1)
    return least, most


def row_norms(blocks: Sequence[Block], lower: Tensor, upper: Tensor) -> Tensor:
    """The largest l1 norm of every output's gradient over each box: (B, n)."""
    total = torch.zeros((), dtype=torch.float64)
    for block in blocks:
        total = total + block.slopes(lower, upper)
    return total


def worst_points(blocks: Sequence[Block], lower: Tensor, upper: Tensor, y: Tensor, other: Tensor) -> Tensor:
    """A point of each box where output y - output other is least: (B, d)."""
    point = lower.clone()
    rows = torch.arange(len(lower))
    for block in blocks:
        ends = block.candidates(lower, upper)
        values = block.curve(ends)
        best = (values[rows, :, y] - values[rows, :, other]).argmin(1)
        placed = block.place(lower, upper, ends[rows, best])
        point = torch.where(block.signs != 0, placed, point)
    return point
