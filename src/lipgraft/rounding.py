"""Boxes of real numbers in a network's arithmetic: rounded outward for proofs, inward for counterexamples."""

from __future__ import annotations

import torch
from torch import Tensor


def round_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest number of this type that is at least x (float64)."""
    near = x.to(dtype)
    return torch.where(near.double() < x, torch.nextafter(near, torch.full_like(near, torch.inf)), near)


def round_down(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest number of this type that is at most x (float64)."""
    return -round_up(-x, dtype)


def sum_up(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest number of this type that is at least a + b, the sum of real numbers. a, b: float64."""
    total, error = _two_sum(a, b)
    above = torch.where(error > 0, torch.nextafter(total, torch.full_like(total, torch.inf)), total)
    return round_up(above, dtype)


def sum_down(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest number of this type that is at most a + b, the sum of real numbers. a, b: float64."""
    return -sum_up(-a, -b, dtype)


def within(point: Tensor, x: Tensor, eps: Tensor) -> Tensor:
    """Whether the real numbers point and x differ by at most eps, element by element. All of float32 or float64."""
    distance, error = _two_sum(point.double(), -x.double())
    error = torch.where(distance < 0, -error, error)
    distance, eps = distance.abs(), eps.double()
    return (distance < eps) | ((distance == eps) & (error <= 0))


def inner_box(lower: Tensor, upper: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The numbers of this type between two ends (float64); the nearest one where there is none between them."""
    low, high = round_up(lower, dtype), round_down(upper, dtype)
    empty = low > high
    nearest = ((lower + upper) / 2).to(dtype)
    return torch.where(empty, nearest, low), torch.where(empty, nearest, high)


def outer_ball(lower: Tensor, upper: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A centre and a radius of this type such that centre - radius <= lower and upper <= centre + radius."""
    centre = ((lower + upper) / 2).to(dtype)
    radius = torch.maximum(upper - centre.double(), centre.double() - lower)
    return centre, round_up(radius, dtype)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """fl(a + b) and the error, exactly: a + b = total + error in real numbers (Knuth's two-sum, without overflow)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
