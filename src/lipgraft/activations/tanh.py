"""Tanh, which is 2 sigmoid(2 z) - 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations.s_shaped import SShaped
from lipgraft.activations.sigmoid import sigmoid_slope


@dataclass(frozen=True)
class Tanh(SShaped):
    name = "tanh"
    modules = (nn.Tanh,)
    functions = (torch.tanh, F.tanh, torch.tanh_)
    methods = ("tanh", "tanh_")
    onnx = ("Tanh",)

    @property
    def curvature(self) -> float:
        return 0.7699

    def __call__(self, z: Tensor) -> Tensor:
        return z.tanh()

    def derivative(self, z: Tensor) -> Tensor:
        return 4 * sigmoid_slope(2 * z)

    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        value = z.tanh()
        return value, 1 - value * value
