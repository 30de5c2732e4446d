"""Softplus: log(1 + exp(beta z)) / beta, convex."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations.curve import Formula, Interval
from lipgraft.activations.lines import Lines
from lipgraft.activations.smooth import Smooth

LEAST_THRESHOLD = 10.0


@dataclass(frozen=True)
class Softplus(Smooth):
    """PyTorch takes z itself where beta z > threshold: less than the curve, by at most `gap`."""

    name = "softplus"
    modules = (nn.Softplus,)
    functions = (F.softplus,)
    onnx = ("Softplus",)

    beta: float = 1.0
    threshold: float = 20.0

    def __post_init__(self) -> None:
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise ValueError(f"its beta {self.beta} is not positive")
        if not self.threshold >= LEAST_THRESHOLD:
            raise ValueError(f"its threshold {self.threshold} is below {LEAST_THRESHOLD:g}, where it would jump")

    @property
    def curvature(self) -> float:
        return self.beta / 4

    @property
    def gap(self) -> float:
        return math.exp(-self.threshold) / self.beta

    def __call__(self, z: Tensor) -> Tensor:
        return F.softplus(z, self.beta, self.threshold)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.where(self.beta * z > self.threshold, 1.0, torch.sigmoid(self.beta * z))

    def image(self, lb: Tensor, ub: Tensor) -> Interval:
        """Monotone but for the small step down at the threshold."""
        low, high = self(lb), self(ub)
        jumps = (self.beta * lb <= self.threshold) & (self.beta * ub > self.threshold)
        edge = self.threshold / self.beta
        return torch.where(jumps, low.clamp(max=edge), low), torch.where(jumps, high.clamp(min=edge + self.gap), high)

    def lines(self, lb: Tensor, ub: Tensor, anchors: Tensor | None = None) -> Callable[[Tensor], Lines]:
        """Those of the curve as PyTorch computes it, moved by the step that it makes at the threshold."""
        smooth = super().lines(lb, ub)
        step = (self.beta * ub > self.threshold).to(lb.dtype) * self.gap

        def moved(alpha: Tensor) -> Lines:
            lines = smooth(alpha)
            assert lines.lower_intercept is not None
            assert lines.upper_intercept is not None
            return replace(
                lines, lower_intercept=lines.lower_intercept - step, upper_intercept=lines.upper_intercept + step
            )

        return moved

    @classmethod
    def called(cls, beta: float = 1, threshold: float = 20) -> Self:
        return cls(float(beta), float(threshold))

    @property
    def formula(self) -> Formula | None:
        """ONNX knows beta = 1 alone."""
        return None if self.beta == 1 else ("Mul", ("Softplus", ("Mul", "z", self.beta)), 1 / self.beta)
