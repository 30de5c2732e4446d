"""The derivative of an activation node: its value at a point and its range over an interval, grafts included."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.activations import Interval
from lipgraft.network.graph import Activation


def slope_at(node: Activation, z: Tensor, step: Tensor | None = None) -> Tensor:
    """act'(z), or gamma where the neuron is grafted. (..., *shape) -> the same.

    step: a length for every neuron. With it, autograd sees the steps of a kinked activation's derivative as smooth
    ones of about that length, so that there is a direction in which the derivative grows; the value stays exact.
    """
    curve = node.curve
    slope = curve.derivative(z)
    if curve.kinks and step is not None:
        jumps = zip(curve.kinks, curve.slopes, curve.slopes[1:], strict=False)
        smooth = torch.stack([(right - left) * torch.sigmoid((z - kink) / step) for kink, left, right in jumps]).sum(0)
        slope = slope.detach() + (smooth - smooth.detach())
    return slope if node.graft is None else torch.where(node.graft.mask, node.graft.gamma, slope)


def slope_range(node: Activation, lb: Tensor, ub: Tensor) -> Interval:
    """The range of act' over [lb, ub], or exactly gamma where the neuron is grafted. Both (B, *shape)."""
    lower, upper = node.curve.derivative_range(lb, ub)
    if node.graft is None:
        return lower, upper
    mask, gamma = node.graft.mask, node.graft.gamma
    return torch.where(mask, gamma, lower), torch.where(mask, gamma, upper)
