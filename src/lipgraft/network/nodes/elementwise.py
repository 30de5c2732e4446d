"""Affine nodes without weights that mix: sums, scales, padding, changes of shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.activations.curve import Interval, OnnxWriter
from lipgraft.network.nodes.node import Affine, Cache, Layout, Shape
from lipgraft.network.window import Window


@dataclass(frozen=True, eq=False)
class Add(Affine):
    """The sum of two nodes of the same shape (which may be the same node twice).

    Going back, each input gets the rows as they are.
    """

    is_view: ClassVar[bool] = True

    def linear(self, *inputs: Tensor) -> Tensor:
        return inputs[0] + inputs[1] if len(inputs) == 2 else inputs[0]  # one alone, where the other counts as zero

    def interval(self, *inputs: Interval) -> Interval:
        (l1, u1), (l2, u2) = inputs
        return l1 + l2, u1 + u2

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        return rows

    def transpose_window(self, rows: Tensor, layout: Layout, cache: Cache) -> Tensor:
        return rows

    def window(self, window: Window) -> Window:
        return window

    def strongest(self, worth: Tensor, shape: Shape) -> Tensor:
        return worth

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        return writer.operator("Add", inputs, name)


@dataclass(frozen=True, eq=False)
class Scale(Affine):
    """x -> scale * x + shift, element by element; both broadcast to the node's shape."""

    scale: Tensor
    shift: Tensor
    diagonal: ClassVar[bool] = True

    @property
    def constant(self) -> Tensor:
        return self.shift

    def linear(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * self.scale

    def magnitude(self) -> Scale:
        return replace(self, scale=self.scale.abs())

    def squared(self) -> Scale:
        return replace(self, scale=self.scale.square())

    def interval(self, *inputs: Interval) -> Interval:
        lb, ub = (self.scale * end for end in inputs[0])
        return torch.minimum(lb, ub) + self.shift, torch.maximum(lb, ub) + self.shift

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        return rows * self.scale

    def transpose_window(self, rows: Tensor, layout: Layout, cache: Cache) -> Tensor:
        return rows * layout("scale", self.scale)

    def window(self, window: Window) -> Window:
        return window

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        """Without the part that does nothing."""
        (x,) = inputs
        multiplies, adds = bool((self.scale != 1).any()), bool((self.shift != 0).any())
        if multiplies or not adds:
            scale = writer.per_neuron(f"{name}_scale", self.scale)
            x = writer.operator("Mul", [x, scale], f"{name}_scaled" if adds else name)
        return writer.operator("Add", [x, writer.per_neuron(f"{name}_shift", self.shift)], name) if adds else x


@dataclass(frozen=True, eq=False)
class Pad(Affine):
    """Zero padding of an image: (left, right, top, bottom), all >= 0."""

    pads: tuple[int, int, int, int]
    diagonal: ClassVar[bool] = True
    is_view: ClassVar[bool] = True

    @property
    def overhangs(self) -> bool:
        return any(self.pads)

    def linear(self, *inputs: Tensor) -> Tensor:
        return F.pad(inputs[0], self.pads)

    def interval(self, *inputs: Interval) -> Interval:
        lb, ub = inputs[0]
        return F.pad(lb, self.pads), F.pad(ub, self.pads)

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        left, right, top, bottom = self.pads
        height, width = rows.shape[-2:]
        return rows[..., top : height - bottom, left : width - right]

    def transpose_window(self, rows: Tensor, layout: Layout, cache: Cache) -> Tensor:
        return rows

    def window(self, window: Window) -> Window:
        left, _, top, _ = self.pads
        return Window(window.size, window.stride, (window.offset[0] - top, window.offset[1] - left))

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        left, right, top, bottom = self.pads
        sides = torch.tensor([0, 0, top, left, 0, 0, bottom, right])
        return writer.operator("Pad", [*inputs, writer.constant(f"{name}_pads", sides)], name, mode="constant")


@dataclass(frozen=True, eq=False)
class Reshape(Affine):
    """Flatten, view, squeeze, ...: the same numbers in another shape, in the same order."""

    diagonal: ClassVar[bool] = True
    is_view: ClassVar[bool] = True

    def linear(self, *inputs: Tensor) -> Tensor:
        return inputs[0].reshape(-1, *self.shape)

    def interval(self, *inputs: Interval) -> Interval:
        lb, ub = inputs[0]
        return self.linear(lb), self.linear(ub)

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        return rows.reshape(*self._lead(rows), *shape)

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        if len(self.shape) == 1:
            return writer.operator("Flatten", inputs, name, axis=1)
        shape = writer.constant(f"{name}_shape", torch.tensor([-1, *self.shape]))
        return writer.operator("Reshape", [*inputs, shape], name)
