"""Element-wise activations, some of whose neurons may be lines."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.activations import Curve
from lipgraft.activations.curve import Interval, OnnxWriter
from lipgraft.network.nodes.node import Node
from lipgraft.network.window import Window


@dataclass(frozen=True, eq=False)
class Graft:
    """Which neurons of an activation are lines gamma z + omega. All of the activation's shape; mask is boolean."""

    mask: Tensor
    gamma: Tensor
    omega: Tensor


@dataclass(frozen=True, eq=False)
class Activation(Node):
    """An element-wise activation. graft, when given, replaces the masked neurons by lines.

    auxiliary: it is a part of something else (max pooling) and no layer of the model's neurons.
    """

    curve: Curve
    graft: Graft | None = None
    auxiliary: bool = False

    @property
    def kind(self) -> str:
        """The name of the curve's kind."""
        return self.curve.name

    def forward(self, *inputs: Tensor) -> Tensor:
        """activation(z), or gamma z + omega where the neuron is grafted."""
        (z,) = inputs
        h = self.curve(z)
        return h if self.graft is None else torch.where(self.graft.mask, self.graft.gamma * z + self.graft.omega, h)

    def absolute(self, *inputs: Tensor, constant: bool = True) -> Tensor:
        """|act(z)| <= |act(0)| + (steepest slope) |z|, and grafted neurons by their line."""
        (z,) = inputs
        out = self.curve.steepest * z + (self.curve.at_zero if constant else 0.0)
        if self.graft is None:
            return out
        line = self.graft.gamma.abs() * z + (self.graft.omega.abs() if constant else 0.0)
        return torch.where(self.graft.mask, line, out)

    @property
    def terms(self) -> int:
        """As many as would err like PyTorch's curves, the worst of which (GELU) is wrong by up to nine units."""
        return 31

    def interval(self, *inputs: Interval) -> Interval:
        """The image of an interval under the activation, grafted neurons under their line."""
        lb, ub = inputs[0]
        low, high = self.curve.image(lb, ub)
        if self.graft is not None:
            mask, gamma, omega = self.graft.mask, self.graft.gamma, self.graft.omega
            rising = gamma >= 0  # cheaper to differentiate than the minimum of both ends
            low = torch.where(mask, gamma * torch.where(rising, lb, ub) + omega, low)
            high = torch.where(mask, gamma * torch.where(rising, ub, lb) + omega, high)
        return low, high

    def window(self, window: Window) -> Window:
        return window

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        """A grafted neuron is written so that other verifiers see a line.

        h = act(n z + (n - 1)) + (a z + b), with n = 0 where the neuron is grafted and 1 elsewhere, and a, b zero where
        n = 1. Its activation sees the constant -1, so nobody counts, relaxes or branches on it.
        """
        (z,) = inputs
        if self.graft is None:
            return self.curve.write_onnx(writer, z, name)
        mask, zero = self.graft.mask, torch.zeros_like(self.graft.gamma)
        n = 1.0 - mask.to(zero.dtype)
        # The activation of a grafted neuron is constant, but only ReLU's is zero: the line takes the rest back.
        constant = float(self.curve(torch.tensor(-1.0)))
        a = torch.where(mask, self.graft.gamma, zero)
        b = torch.where(mask, self.graft.omega - constant, zero)
        # Some verifiers can only branch on a ReLU that stands right behind an Add.
        kept = writer.operator("Mul", [z, writer.per_neuron(f"{name}_n", n)], f"{name}_kept")
        sees = writer.operator("Add", [kept, writer.per_neuron(f"{name}_n1", n - 1.0)], f"{name}_sees")
        curve = self.curve.write_onnx(writer, sees, name)
        sloped = writer.operator("Mul", [z, writer.per_neuron(f"{name}_a", a)], f"{name}_sloped")
        line = writer.operator("Add", [sloped, writer.per_neuron(f"{name}_b", b)], f"{name}_line")
        return writer.operator("Add", [curve, line], f"{name}_grafted")
