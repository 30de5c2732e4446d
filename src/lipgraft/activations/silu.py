"""SiLU, also called swish: z sigmoid(z)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations.curve import Formula, OnnxCall
from lipgraft.activations.sigmoid import sigmoid_slope
from lipgraft.activations.smooth import Smooth


@dataclass(frozen=True)
class SiLU(Smooth):
    """Concave outside its two inflections, with one minimum left of zero."""

    name = "silu"
    modules = (nn.SiLU,)
    functions = (F.silu,)
    onnx = ("Swish",)
    convex_left: ClassVar[bool] = False

    @property
    def inflections(self) -> tuple[float, ...]:
        return (-2.3993572805154675, 2.3993572805154675)

    @property
    def turns(self) -> tuple[float, ...]:
        return (-1.2784645427610737,)

    @property
    def curvature(self) -> float:
        return 0.5

    def __call__(self, z: Tensor) -> Tensor:
        return F.silu(z)

    def derivative(self, z: Tensor) -> Tensor:
        """s(z) + z s'(z), with s the sigmoid."""
        return z.sigmoid() + z * sigmoid_slope(z)

    @classmethod
    def of_onnx(cls, call: OnnxCall) -> Self:
        if float(call.attribute("alpha", 1.0)) != 1.0:
            raise ValueError("its alpha is not 1")
        return cls()

    @property
    def formula(self) -> Formula:
        return ("Mul", "z", ("Sigmoid", "z"))

    @classmethod
    def with_formula(cls) -> tuple[Self, ...]:
        return (cls(),)
