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
