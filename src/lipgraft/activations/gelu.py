"""GELU: z Phi(z), with Phi the normal distribution; or its approximation by tanh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations.curve import Formula, OnnxCall
from lipgraft.activations.sigmoid import sigmoid_slope
from lipgraft.activations.smooth import Smooth

CUBIC = 0.044715
SCALE = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class GELU(Smooth):
    """Concave outside its two inflections, with one minimum left of zero."""

    name = "gelu"
    modules = (nn.GELU,)
    functions = (F.gelu,)
    onnx = ("Gelu",)
    convex_left: ClassVar[bool] = False

    approximate: str = "none"

    def __post_init__(self) -> None:
        if self.approximate not in ("none", "tanh"):
            raise ValueError(f"its approximation {self.approximate!r} is neither 'none' nor 'tanh'")

    @property
    def inflections(self) -> tuple[float, ...]:
        place = math.sqrt(2) if self.approximate == "none" else 1.418504008790828
        return (-place, place)

    @property
    def turns(self) -> tuple[float, ...]:
        return (-0.7517915246935644 if self.approximate == "none" else -0.7524614220710163,)

    @property
    def curvature(self) -> float:
        return 0.8

    def __call__(self, z: Tensor) -> Tensor:
        return F.gelu(z, approximate=self.approximate)

    def derivative(self, z: Tensor) -> Tensor:
        """Phi(z) + z phi(z); of the approximation, the same with its own distribution s and density s'.

        s = sigmoid(2 u), u = sqrt(2 / pi) (z + 0.044715 z^3). Far out both are constant, and powers must not overflow.
        """
        z = z.clamp(-50, 50)
        if self.approximate == "none":
            density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
            share: Tensor = torch.special.erfc(-z / math.sqrt(2)) / 2
            return share + z * density
        u = SCALE * (z + CUBIC * z**3)
        density = 2 * SCALE * (1 + 3 * CUBIC * z.square()) * sigmoid_slope(2 * u)
        return (2 * u).sigmoid() + z * density

    @classmethod
    def called(cls, *, approximate: str = "none") -> Self:  # type: ignore[override]
        return cls(approximate)

    @classmethod
    def of_onnx(cls, call: OnnxCall) -> Self:
        return cls(call.attribute("approximate", "none"))

    def onnx_attributes(self) -> dict[str, Any]:
        return {"approximate": self.approximate}

    @property
    def formula(self) -> Formula:
        if self.approximate == "none":
            bell: Formula = ("Erf", ("Mul", "z", math.sqrt(0.5)))
        else:
            cube = ("Mul", ("Mul", "z", "z"), "z")
            bell = ("Tanh", ("Mul", ("Add", "z", ("Mul", cube, CUBIC)), SCALE))
        return ("Mul", ("Mul", "z", 0.5), ("Add", bell, 1.0))

    @classmethod
    def with_formula(cls) -> tuple[Self, ...]:
        return (cls("none"), cls("tanh"))
