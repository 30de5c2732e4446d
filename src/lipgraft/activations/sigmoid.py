"""Sigmoid: 1 / (1 + exp(-z))."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations.s_shaped import SShaped


@dataclass(frozen=True)
class Sigmoid(SShaped):
    name = "sigmoid"
    modules = (nn.Sigmoid,)
    functions = (torch.sigmoid, F.sigmoid, torch.sigmoid_)
    methods = ("sigmoid", "sigmoid_")
    onnx = ("Sigmoid",)

    @property
    def curvature(self) -> float:
        return 0.0963

    def __call__(self, z: Tensor) -> Tensor:
        return z.sigmoid()

    def derivative(self, z: Tensor) -> Tensor:
        return sigmoid_slope(z)

    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        value = z.sigmoid()
        return value, value * (1 - value)


def sigmoid_slope(z: Tensor) -> Tensor:
    """exp(-|z|) / (1 + exp(-|z|))^2: even to the last digit, and exact in its tails, where s (1 - s) cancels."""
    e = torch.exp(-z.abs())
    return e / (1 + e).square()
