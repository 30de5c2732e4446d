"""A network as a list of nodes: affine maps, each with its way back, and two-piece activations.

Values are rows of flat numbers, (R, n), in the order of the ONNX file's tensors without their batch axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipgraft.errors import LipgraftError

Array = NDArray[Any]
Shape = tuple[int, ...]

LARGEST_NODE = 2**26  # numbers that one row may take: half a GiB


class Rejected(LipgraftError):
    """Why a network or a proof is not accepted, in one sentence."""


def need(holds: bool, sentence: str) -> None:
    """Go on only if it holds."""
    if not holds:
        raise Rejected(sentence)


def need_subnormals() -> None:
    """Go on only if this thread's arithmetic knows numbers below 2^-1022: the bounds count on their differences."""
    halves = np.full(2, 2.0**-1022) / 2
    need(
        bool((halves > 0).all()),
        "this thread flushes subnormal numbers to zero, as torch.set_flush_denormal(True) or a library compiled with "
        "-ffast-math makes it do, and proves nothing; check in a new process: lipgraft check FOLDER.",
    )


@dataclass(frozen=True)
class Node:
    """One operator: numbers of its inputs, shape of its result. Affine unless it is an Activation."""

    inputs: tuple[int, ...]
    shape: Shape
    bias: Array | None = None  # (n,), or None for zero

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def terms(self) -> int:
        """The most numbers in one sum, forward or back; 0 where nothing is computed."""
        return 0 if self.bias is None else 2

    @property
    def work(self) -> int:
        """Numbers held at once per row."""
        return self.size

    def linear(self, *rows: Array) -> Array:
        """Without the bias, forward: one (R, n_in) per input -> (R, n)."""
        return rows[0]

    def back(self, rows: Array) -> tuple[Array, ...]:
        """The transpose: (R, n) -> (R, n_in) for each input."""
        return (rows,)

    def picked(self, index: Array) -> tuple[Array, ...]:
        """`back` of the rows that pick one number each: (R,) -> (R, n_in) for each input."""
        rows = np.zeros((len(index), self.size))
        rows[np.arange(len(index)), index] = 1.0
        return self.back(rows)

    def magnitude(self) -> Node:
        """The same map with the absolute values of its weights."""
        return self


@dataclass(frozen=True)
class Activation(Node):
    """max(z, slope z), 0 <= slope < 1."""

    slope: float = 0.0

    def image(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Of intervals, rounded outward."""
        ends = ((low, -np.inf), (high, 0.0))
        left = [np.nextafter(self.slope * end, to) if self.slope else 0 * end for end, to in ends]
        return np.where(low >= 0, low, left[0]), np.where(high >= 0, high, left[1])


@dataclass(frozen=True)
class Sum(Node):
    """x + sign y."""

    sign: float = 1.0

    @property
    def terms(self) -> int:
        return 2

    def linear(self, *rows: Array) -> Array:
        return rows[0] + self.sign * rows[1]

    def back(self, rows: Array) -> tuple[Array, ...]:
        return rows, rows if self.sign > 0 else -rows

    def magnitude(self) -> Node:
        return replace(self, sign=1.0)


@dataclass(frozen=True)
class Weighted(Node):
    """A node with weights. As it stands: element by element, weight (n,)."""

    weight: Array = None  # type: ignore[assignment]

    @property
    def terms(self) -> int:
        return 2

    def linear(self, *rows: Array) -> Array:
        return rows[0] * self.weight

    def back(self, rows: Array) -> tuple[Array, ...]:
        return (rows * self.weight,)

    def magnitude(self) -> Node:
        return replace(self, weight=abs(self.weight))


@dataclass(frozen=True)
class Dense(Weighted):
    """weight (n, n_in)."""

    @property
    def terms(self) -> int:
        n, n_in = self.weight.shape
        return int(max(n, n_in)) + 1

    def linear(self, *rows: Array) -> Array:
        out: Array = np.matmul(rows[0], self.weight.T)
        return out

    def back(self, rows: Array) -> tuple[Array, ...]:
        return (np.matmul(rows, self.weight),)

    def picked(self, index: Array) -> tuple[Array, ...]:
        return (self.weight[index],)


@dataclass(frozen=True)
class Pick(Node):
    """Number index[k] of an input of `count` numbers is number k of the result."""

    index: Array = None  # type: ignore[assignment]
    count: int = 0

    @property
    def terms(self) -> int:
        return int(np.bincount(self.index).max()) + 1

    def linear(self, *rows: Array) -> Array:
        out: Array = rows[0][:, self.index]
        return out

    def back(self, rows: Array) -> tuple[Array, ...]:
        out = np.zeros((len(rows), self.count), rows.dtype)
        np.add.at(out.T, self.index, rows.T)
        return (out,)


@dataclass(frozen=True)
class Pad(Node):
    """Zeros around what has the shape `image`; before: how many on the near side of each axis."""

    image: Shape = ()
    before: Shape = ()

    @property
    def _inside(self) -> tuple[slice, ...]:
        return (slice(None), *(slice(b, b + n) for b, n in zip(self.before, self.image, strict=True)))

    def linear(self, *rows: Array) -> Array:
        out = np.zeros((len(rows[0]), *self.shape))
        out[self._inside] = rows[0].reshape(-1, *self.image)
        return out.reshape(len(out), -1)

    def back(self, rows: Array) -> tuple[Array, ...]:
        return (rows.reshape(-1, *self.shape)[self._inside].reshape(len(rows), -1),)


@dataclass(frozen=True)
class Conv(Weighted):
    """Convolution, or its transpose (upside): both relate an image to a grid of kernel positions.

    weight (G, grid channels / G, image channels / G, kh, kw); image (C, H, W); grid (channels, rows, columns);
    pads (top, left, bottom, right).
    """

    image: Shape = ()
    grid: Shape = ()
    strides: Shape = ()
    dilations: Shape = ()
    pads: Shape = ()
    upside: bool = False

    @property
    def terms(self) -> int:
        _, outer, inner, *kernel = self.weight.shape
        return int(max(outer, inner)) * math.prod(kernel) + 1

    @property
    def work(self) -> int:
        return self.image[0] * math.prod(self.weight.shape[3:]) * math.prod(self.grid[1:])

    def linear(self, *rows: Array) -> Array:
        return self._to_image(rows[0]) if self.upside else self._to_grid(rows[0])

    def back(self, rows: Array) -> tuple[Array, ...]:
        return (self._to_grid(rows) if self.upside else self._to_image(rows),)

    def _taps(self, padded: Array) -> Any:
        """For each kernel tap, the view of an image that has one place per kernel position."""
        (rows, columns), (sy, sx), (dy, dx) = self.grid[1:], self.strides, self.dilations
        for y in range(self.weight.shape[3]):
            for x in range(self.weight.shape[4]):
                down = slice(y * dy, y * dy + sy * (rows - 1) + 1, sy)
                right = slice(x * dx, x * dx + sx * (columns - 1) + 1, sx)
                yield y, x, padded[..., down, right]

    def picked(self, index: Array) -> tuple[Array, ...]:
        """The kernel, placed where the number looks."""
        if self.upside:
            return super().picked(index)
        _, outer, inner, kh, kw = self.weight.shape
        padded, inside = self._blank(index.astype(np.float64))
        channel, *corner = np.unravel_index(index, self.grid)
        number, channels = np.arange(len(index))[:, None], (channel // outer * inner)[:, None] + np.arange(inner)
        row, column = (place[:, None] * stride for place, stride in zip(corner, self.strides, strict=True))
        for y in range(kh):
            for x in range(kw):
                place = row + y * self.dilations[0], column + x * self.dilations[1]
                padded[number, channels, *place] = self.weight[channel // outer, channel % outer, :, y, x]
        return (inside.reshape(len(index), -1),)

    def _blank(self, rows: Array) -> tuple[Array, Array]:
        """A padded image of zeros for each row, and the view of its inside."""
        (channels, height, width), (top, left, bottom, right) = self.image, self.pads
        padded = np.zeros((len(rows), channels, top + height + bottom, left + width + right), rows.dtype)
        return padded, padded[:, :, top : top + height, left : left + width]

    def _to_grid(self, rows: Array) -> Array:
        groups, outer, inner, kh, kw = self.weight.shape
        padded, inside = self._blank(rows)
        inside[:] = rows.reshape(inside.shape)
        columns = np.empty((len(rows), self.image[0], kh, kw, *self.grid[1:]), rows.dtype)
        for y, x, view in self._taps(padded):
            columns[:, :, y, x] = view
        columns = columns.reshape(len(rows), groups, inner * kh * kw, -1)
        out: Array = np.matmul(self.weight.reshape(groups, outer, -1), columns)
        return out.reshape(len(rows), -1)

    def _to_image(self, rows: Array) -> Array:
        groups, outer, _, kh, kw = self.weight.shape
        weight = self.weight.reshape(groups, outer, -1).swapaxes(1, 2)
        columns = np.matmul(weight, rows.reshape(len(rows), groups, outer, -1))
        columns = columns.reshape(len(rows), self.image[0], kh, kw, *self.grid[1:])
        padded, inside = self._blank(rows)
        for y, x, view in self._taps(padded):
            view += columns[:, :, y, x]
        return inside.reshape(len(rows), -1)


@dataclass(frozen=True)
class Network:
    """nodes[0] is the input; every node comes after its inputs."""

    nodes: tuple[Node, ...]
    output: int
    single: bool  # all weights are float32 numbers

    @property
    def activations(self) -> list[int]:
        return [i for i, node in enumerate(self.nodes) if isinstance(node, Activation)]
