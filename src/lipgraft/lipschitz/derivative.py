"""The derivative of an activation: its value at a point and its range over an interval.

The range is that of Clarke's derivative: wherever the pre-activation may be 0, a kinked activation has every slope
between its two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.errors import UnsupportedOperationError, unknown_name
from lipgraft.network.graph import Activation


@dataclass(frozen=True)
class Derivative:
    """at: (z, negative_slope) -> act'(z). over: (lb, ub, negative_slope) -> (lower, upper) of act' on [lb, ub].

    kinked: act' is a step at 0, so that its own derivative says nothing about where it grows.
    """

    at: Callable[[Tensor, float], Tensor]
    over: Callable[[Tensor, Tensor, float], Interval]
    kinked: bool = False


def _at_kink(z: Tensor, negative_slope: float) -> Tensor:
    """1 right of 0, negative_slope elsewhere."""
    return _either(z > 0, negative_slope, z)


def _over_kink(lb: Tensor, ub: Tensor, negative_slope: float) -> Interval:
    """1 where lb > 0, a = negative_slope <= 1 where ub < 0, [a, 1] where the interval holds 0 (or is not a number)."""
    return _either(lb > 0, negative_slope, lb), _either(~(ub < 0), negative_slope, lb)


def _either(active: Tensor, negative_slope: float, like: Tensor) -> Tensor:
    """1 where active, negative_slope elsewhere, rounded to like's dtype and to no coarser one on the way."""
    return torch.where(active, torch.ones_like(like), torch.full_like(like, negative_slope))


def _bell(at: Callable[[Tensor], Tensor]) -> Derivative:
    """A derivative that is even and falls with |z|: its range is given by the points nearest to and farthest from 0."""

    def over(lb: Tensor, ub: Tensor, _: float) -> Interval:
        nearest = torch.where((lb < 0) & (ub > 0), 0.0, torch.minimum(lb.abs(), ub.abs()))
        return at(torch.maximum(lb.abs(), ub.abs())), at(nearest)

    return Derivative(lambda z, _: at(z), over)


def _sigmoid(z: Tensor) -> Tensor:
    """s(z) (1 - s(z)), where 1 - s(z) = s(-z) keeps its digits for large z."""
    return z.sigmoid() * (-z).sigmoid()


def _tanh(z: Tensor) -> Tensor:
    """1 - tanh(z)^2 = 4 s(2 z) s(-2 z), with s the sigmoid."""
    return 4 * _sigmoid(2 * z)


DERIVATIVES: dict[str, Derivative] = {
    "relu": Derivative(lambda z, _: _at_kink(z, 0.0), lambda lb, ub, _: _over_kink(lb, ub, 0.0), kinked=True),
    "leaky-relu": Derivative(_at_kink, _over_kink, kinked=True),
    "sigmoid": _bell(_sigmoid),
    "tanh": _bell(_tanh),
}


def derivative(kind: str) -> Derivative:
    if kind not in DERIVATIVES:
        raise UnsupportedOperationError(unknown_name("activation", kind, list(DERIVATIVES)))
    return DERIVATIVES[kind]


def slope_at(node: Activation, z: Tensor, step: Tensor | None = None) -> Tensor:
    """act'(z), or gamma where the neuron is grafted. (..., *shape) -> the same.

    step: a length for every neuron. With it, autograd sees the step of a kinked activation's derivative as a smooth
    one of about that length, so that there is a direction in which the derivative grows; the value stays exact.
    """
    rule = derivative(node.kind)
    slope = rule.at(z, node.negative_slope)
    if rule.kinked and step is not None:
        smooth = (1.0 - node.negative_slope) * torch.sigmoid(z / step)
        slope = slope.detach() + (smooth - smooth.detach())
    return slope if node.graft is None else torch.where(node.graft.mask, node.graft.gamma, slope)


def slope_range(node: Activation, lb: Tensor, ub: Tensor) -> Interval:
    """The range of act' over [lb, ub], or exactly gamma where the neuron is grafted. Both (B, *shape)."""
    lower, upper = derivative(node.kind).over(lb, ub, node.negative_slope)
    if node.graft is None:
        return lower, upper
    mask, gamma = node.graft.mask, node.graft.gamma
    return torch.where(mask, gamma, lower), torch.where(mask, gamma, upper)
