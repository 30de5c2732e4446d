"""What every node of the graph can do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor

from lipgraft.activations.curve import Interval, OnnxWriter
from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.window import Window

Shape = tuple[int, ...]
Cache = dict[object, Tensor]
"""Rearranged weights, kept by whoever sends many rows through the same nodes."""

Layout = Callable[[str, Tensor], Tensor]
"""(name, a tensor that broadcasts to a node's shape) -> the same, laid out to multiply rows on windows of that node."""


@dataclass(frozen=True, eq=False)
class Node:
    """name: unique; inputs: positions of earlier nodes; shape: of one output, without the batch axis."""

    name: str
    inputs: tuple[int, ...]
    shape: Shape

    def forward(self, *inputs: Tensor) -> Tensor:
        """The node's value from those of its inputs, each (B, *shape). Differentiable."""
        raise self._cannot("be evaluated")

    def interval(self, *inputs: Interval) -> Interval:
        """The interval of the node's value from those of its inputs, each end (B, *shape). Differentiable."""
        raise self._cannot("be bounded")

    def absolute(self, *inputs: Tensor, constant: bool = True) -> Tensor:
        """The node with absolute values in place of its numbers: how large inputs up to these can make it.

        inputs: >= 0, (B, *shape). constant: with the node's constants; without, how far errors of the inputs reach.
        """
        return self.forward(*inputs)

    @property
    def terms(self) -> int:
        """How many products, the constant included, one value of the node adds up at most."""
        return 1

    def window(self, window: Window) -> Window | None:
        """The window on the node's input that this window on its output reads; None for all of the input."""
        return None

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        """Append the operators that compute the node; returns the name of the result."""
        raise self._cannot("be exported")

    def _cannot(self, what: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(f"node {self.name!r} of type {type(self).__name__} cannot {what}.")


@dataclass(frozen=True, eq=False)
class Input(Node):
    """The network's input. Always node 0."""


@dataclass(frozen=True, eq=False)
class Affine(Node):
    """x -> W x + b. A new affine operator is one subclass; what it leaves out has a general answer here.

    diagonal: each output reads at most one input, and each input feeds at most one output.
    is_view: the transposed map returns a view of what it gets.
    has_neuron_rows: the rows of its neurons can be looked up in its weights.
    """

    diagonal: ClassVar[bool] = False
    is_view: ClassVar[bool] = False
    has_neuron_rows: ClassVar[bool] = False

    @property
    def constant(self) -> Tensor | None:
        """b, in a shape that broadcasts to the node's; None for zero."""
        return None

    @property
    def overhangs(self) -> bool:
        """Whether a window on the input may reach over the input's edge, into padding."""
        return False

    def linear(self, *inputs: Tensor) -> Tensor:
        """W x: the node without its constant. inputs: (B, *shape) each."""
        raise self._cannot("be evaluated")

    def forward(self, *inputs: Tensor) -> Tensor:
        out, constant = self.linear(*inputs), self.constant
        return out if constant is None else out + constant

    def magnitude(self) -> Self:
        """The node with |W| in place of W."""
        return self

    def squared(self) -> Self:
        """The node with the squares of W's numbers in place of W."""
        return self

    def absolute(self, *inputs: Tensor, constant: bool = True) -> Tensor:
        out = self.magnitude().linear(*inputs)
        return out if self.constant is None or not constant else out + self.constant.abs()

    @property
    def terms(self) -> int:
        return 2

    def interval(self, *inputs: Interval) -> Interval:
        """W c + b -/+ |W| r, with c and r the centre and radius of the input's interval."""
        centre = self.forward(*((lb + ub) / 2 for lb, ub in inputs))
        radius = self.magnitude().linear(*((ub - lb) / 2 for lb, ub in inputs))
        return centre - radius, centre + radius

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        """W' applied to rows on all of the output: (..., *self.shape) -> (..., *shape), the shape of the input."""
        raise self._cannot("send rows back")

    def transpose_window(self, rows: Tensor, layout: Layout, cache: Cache) -> Tensor:
        """The same for rows on a window of the output, for a node that has `window`: its axes are the last three."""
        raise self._cannot("send rows on windows back")

    def neuron_rows(self) -> Tensor:
        """The row on the input of each neuron of a vector, or of each channel of an image on the window that a single
        neuron reads: (n, *block). Only where has_neuron_rows says so.
        """
        raise self._cannot("tell its neurons' rows")

    def strongest(self, worth: Tensor, shape: Shape) -> Tensor:
        """At each input j, the largest |w_kj| worth_k over the outputs k. worth: (*self.shape), >= 0 -> (*shape)."""
        if not self.diagonal:
            raise self._cannot("weigh its inputs")
        return self.magnitude().transpose(worth[None], shape, {})[0]

    def scaled(self, scale: Tensor, shift: Tensor) -> Self | None:
        """The node followed by a scale and a shift per output channel, (O,) each, or None when that is not one node."""
        return None

    def _lead(self, rows: Tensor) -> Shape:
        """The axes of rows before those of the node's shape."""
        return tuple(rows.shape[: rows.ndim - len(self.shape)])


@dataclass(frozen=True, eq=False)
class Weighted(Affine):
    """An affine node with a weight and a bias, (O,) or None."""

    weight: Tensor
    bias: Tensor | None

    @property
    def constant(self) -> Tensor | None:
        return None if self.bias is None else self.bias.reshape(-1, *[1] * (len(self.shape) - 1))

    def magnitude(self) -> Self:
        return replace(self, weight=self.weight.abs())

    def squared(self) -> Self:
        return replace(self, weight=self.weight.square())

    @property
    def terms(self) -> int:
        first, second, *window = self.weight.shape  # of a transposed convolution the first is the inputs
        return max(first, second) * math.prod(window) + 1

    def scaled(self, scale: Tensor, shift: Tensor) -> Self | None:
        """scale (W x + b) + shift = (scale W) x + (scale b + shift)."""
        weight = self.weight * scale.reshape(-1, *[1] * (self.weight.ndim - 1))
        bias = shift.clone() if self.bias is None else scale * self.bias + shift
        return replace(self, weight=weight, bias=bias)

    def _onnx_constants(self, writer: OnnxWriter, name: str) -> list[str]:
        parts = {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})
        return [writer.constant(f"{name}_{part}", tensor) for part, tensor in parts.items()]
