"""ReLU: max(z, 0)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations.kinked import Kinked


@dataclass(frozen=True)
class ReLU(Kinked):
    name = "relu"
    modules = (nn.ReLU,)
    functions = (torch.relu, F.relu, torch.relu_)
    methods = ("relu", "relu_")
    onnx = ("Relu",)

    @property
    def left(self) -> float:
        return 0.0

    def __call__(self, z: Tensor) -> Tensor:
        return z.relu()
