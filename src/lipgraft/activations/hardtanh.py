"""Hardtanh: z clipped to [min_val, max_val]; ReLU6 is the same with [0, 6]."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations.curve import Curve, Interval, OnnxCall, OnnxWriter
from lipgraft.activations.lines import Lines


@dataclass(frozen=True)
class Hardtanh(Curve):
    """Three lines of slopes 0, 1, 0."""

    name = "hardtanh"
    modules: ClassVar[tuple[type[nn.Module], ...]] = (nn.Hardtanh,)
    functions: ClassVar[tuple[Callable[..., Tensor], ...]] = (F.hardtanh, F.hardtanh_)
    onnx: ClassVar[tuple[str, ...]] = ("Clip",)

    min_val: float = -1.0
    max_val: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min_val) and math.isfinite(self.max_val) and self.min_val < self.max_val):
            raise ValueError(f"its range from {self.min_val} to {self.max_val} is not two finite numbers in order")

    @property
    def kinks(self) -> tuple[float, ...]:
        return (float(self.min_val), float(self.max_val))

    @property
    def slopes(self) -> tuple[float, ...]:
        return (0.0, 1.0, 0.0)

    def __call__(self, z: Tensor) -> Tensor:
        return F.hardtanh(z, self.min_val, self.max_val)

    def derivative(self, z: Tensor) -> Tensor:
        return ((z > self.min_val) & (z < self.max_val)).to(z.dtype)

    def derivative_range(self, lb: Tensor, ub: Tensor) -> Interval:
        """1 throughout strictly between the kinks, 0 throughout beyond them, [0, 1] otherwise."""
        inside = (lb > self.min_val) & (ub < self.max_val)
        outside = (ub < self.min_val) | (lb > self.max_val)
        return inside.to(lb.dtype), (~outside).to(lb.dtype)

    def image(self, lb: Tensor, ub: Tensor) -> Interval:
        return self(lb), self(ub)

    def exact(self, lb: Tensor, ub: Tensor) -> Tensor:
        return (ub <= self.min_val) | (lb >= self.max_val) | ((lb >= self.min_val) & (ub <= self.max_val))

    def start(self, lb: Tensor, ub: Tensor) -> Tensor:
        """The lines of smaller area: each as steep as it may be, if that is better in the middle of the interval."""
        middle = (lb + ub) / 2
        return torch.stack([middle > self.min_val, middle < self.max_val]).to(lb.dtype)

    def lines(self, lb: Tensor, ub: Tensor, anchors: Tensor | None = None) -> Callable[[Tensor], Lines]:
        """Below: with the lower kink inside, a line through (m, m), m = min_val, from flat to as steep as the curve
        allows at ub; otherwise the chord, as the curve is concave. Above: mirrored, with the upper kink (M, M),
        M = max_val. Where the curve is a line, both are that line.
        """
        m, big = self.min_val, self.max_val
        steepest_below = _slope(self(ub) - m, ub - m)
        steepest_above = _slope(big - self(lb), big - lb)
        exact, inner = self.exact(lb, ub), (lb >= m) & (ub <= big)
        stable_slope = inner.to(lb.dtype)
        stable = torch.where(inner, 0.0, self(lb))

        chord = _slope(self(ub) - self(lb), ub - lb)
        low_at, high_at = torch.where(lb >= m, lb, m), torch.where(ub <= big, ub, big)
        known = torch.isfinite(ub - lb)

        def chosen(alpha: Tensor) -> Lines:
            low = torch.where(lb >= m, chord, alpha[0] * steepest_below)
            high = torch.where(ub <= big, chord, alpha[1] * steepest_above)
            return Lines(
                torch.where(exact, stable_slope, low),
                torch.where(known, torch.where(exact, stable, self(low_at) - low * low_at), -torch.inf),
                torch.where(exact, stable_slope, high),
                torch.where(known, torch.where(exact, stable, self(high_at) - high * high_at), torch.inf),
            )

        return chosen

    @classmethod
    def called(cls, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Self:  # type: ignore[override]
        return cls(float(min_val), float(max_val))

    @classmethod
    def of_onnx(cls, call: OnnxCall) -> Self:
        given = [call.attribute(name, call.constant(i)) for i, name in ((1, "min"), (2, "max"))]
        if any(end is None for end in given):
            raise ValueError("it clips on one side only")
        return cls(*(float(end) for end in given))

    def write_onnx(self, writer: OnnxWriter, z: str, name: str) -> str:
        ends = zip(("min", "max"), self.kinks, strict=True)
        return writer.operator(
            "Clip", [z, *(writer.constant(f"{name}_{end}", torch.tensor(value)) for end, value in ends)], name
        )


@dataclass(frozen=True)
class ReLU6(Hardtanh):
    name = "relu6"
    modules = (nn.ReLU6,)
    functions = (F.relu6,)
    onnx = ()

    min_val: float = 0.0
    max_val: float = 6.0

    @classmethod
    def called(cls, inplace: bool = False) -> Self:  # type: ignore[override]
        return cls()

    def module(self) -> nn.Module:
        return nn.ReLU6()


def _slope(rise: Tensor, run: Tensor) -> Tensor:
    return rise / torch.where(run > 0, run, 1.0)
