"""Linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from lipgraft.activations.curve import OnnxWriter
from lipgraft.network.nodes.node import Cache, Shape, Weighted


@dataclass(frozen=True, eq=False)
class Linear(Weighted):
    """x -> weight x + bias, on vectors. weight (m, n), bias (m,) or None."""

    has_neuron_rows: ClassVar[bool] = True

    def linear(self, *inputs: Tensor) -> Tensor:
        return F.linear(inputs[0], self.weight)

    def forward(self, *inputs: Tensor) -> Tensor:
        return F.linear(inputs[0], self.weight, self.bias)

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        return rows @ self.weight

    def neuron_rows(self) -> Tensor:
        return self.weight

    def strongest(self, worth: Tensor, shape: Shape) -> Tensor:
        return (self.weight.abs() * worth[:, None]).amax(0)

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        return writer.operator("Gemm", [*inputs, *self._onnx_constants(writer, name)], name, transB=1)
