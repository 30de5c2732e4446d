"""Leaky ReLU: z right of zero, negative_slope z left of it. A negative slope below zero makes it a V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations.curve import OnnxCall
from lipgraft.activations.kinked import Kinked


@dataclass(frozen=True)
class LeakyReLU(Kinked):
    name = "leaky-relu"
    modules = (nn.LeakyReLU,)
    functions = (F.leaky_relu, F.leaky_relu_)
    onnx = ("LeakyRelu",)

    negative_slope: float = 0.01

    def __post_init__(self) -> None:
        if not self.negative_slope <= 1.0:
            raise ValueError(f"its negative slope {self.negative_slope} is above 1")

    @property
    def left(self) -> float:
        return float(self.negative_slope)

    def __call__(self, z: Tensor) -> Tensor:
        return F.leaky_relu(z, self.negative_slope)

    @classmethod
    def called(cls, negative_slope: float = 0.01, inplace: bool = False) -> Self:  # type: ignore[override]
        return cls(float(negative_slope))

    @classmethod
    def of_onnx(cls, call: OnnxCall) -> Self:
        return cls(float(call.attribute("alpha", float(np.float32(0.01)))))  # attributes are float32 numbers

    def onnx_attributes(self) -> dict[str, Any]:
        return {"alpha": self.left}
