"""Splits of neurons: at which point, what they leave of an interval, and where another one is possible.

A kink at zero is split there, once, and each half is a line. A curve is split at a point inside its interval; each half
has closer lines of its own, and may be split again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds.layout import Layout

NARROWEST = 1e-3  # of a curve's interval: closer than this, its lines are off by less than other neurons cost


def clamped(
    lower: Tensor, upper: Tensor, neuron: Tensor, sign: Tensor, point: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Bounds after splits. lower, upper: (B, N + 1); neuron, sign, point: (B, D); point None: no neuron comes twice,
    and all are split at zero.
    """
    if not neuron.shape[1]:
        return lower, upper
    if point is not None:
        low, high = torch.where(sign > 0, point, -torch.inf), torch.where(sign < 0, point, torch.inf)
        return lower.scatter_reduce(1, neuron, low, "amax"), upper.scatter_reduce(1, neuron, high, "amin")
    low, high = lower.gather(1, neuron), upper.gather(1, neuron)
    low = torch.where(sign > 0, low.clamp(min=0), low)
    high = torch.where(sign < 0, high.clamp(max=0), high)
    return lower.scatter(1, neuron, low), upper.scatter(1, neuron, high)


def splittable(layout: Layout, neuron: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Which of these neurons can be split: their kink is inside, or the interval of their curve is not too narrow.

    neuron, lower, upper: (B, U). NaN compares false: what is not a number is not split.
    """
    bent = (lower < 0) & (upper > 0)
    if not layout.curved:
        return bent
    middle = lower + (upper - lower) / 2
    wide = (upper - lower > NARROWEST) & (lower < middle) & (middle < upper)  # large numbers may have none between
    return torch.where(layout.is_curved[neuron], wide, bent)


def split_points(layout: Layout, neuron: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Where to split neurons, each within its interval: zero for a kink, the middle for a curve. All of one shape."""
    middle = lower + (upper - lower) / 2
    return torch.where(layout.is_curved[neuron], middle, 0.0)


def curve_start(layout: Layout, neuron: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The free parameters that CROWN takes for the lines of these neurons on [lower, upper]; NaN for kinks.

    neuron, lower, upper: (B,) -> (B, k), where k is `layout.parameters`.
    """
    out = lower.new_full((layout.parameters, len(lower)), torch.nan)
    for curve, here in layout.curves.items():
        start = curve.start(lower, upper)
        out[: len(start)] = torch.where(here[neuron], start, out[: len(start)])
    return out.T
