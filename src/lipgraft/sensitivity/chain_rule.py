"""The chain rule: the Jacobian's rows, node by node from the output to the input.

The adjoint g_i of node i is the derivative of one output with respect to the node's value. Going back through an affine
node multiplies it by the transposed matrix, through an activation by the activation's derivative; where a value is
read twice the adjoints add up. Adjoints are (B, K, *shape): B problems, K rows (outputs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from lipgraft.activations import Interval
from lipgraft.network.graph import Activation, Add, Affine, Network, Shape


class Addable(Protocol):
    def __add__(self, other: Self, /) -> Self: ...


T = TypeVar("T", bound=Addable)


def walk_back(
    network: Network,
    start: T,
    affine: Callable[[Affine, T, Shape], T],
    activation: Callable[[int, Activation, T], T],
    position: int | None = None,
) -> T | None:
    """Carry adjoints of any kind from a node to the input; None when the node does not depend on the input.

    start: the adjoint of the node at `position`, by default the output. affine(node, g, shape of its input) and
    activation(position, node, g) are the two rules.
    """
    first = network.output if position is None else position
    waiting: dict[int, T] = {first: start}
    for i in range(first, 0, -1):
        if i not in waiting:
            continue
        node, g = network.nodes[i], waiting.pop(i)
        for j in node.inputs:
            if isinstance(node, Add):
                arrived = g
            elif isinstance(node, Activation):
                arrived = activation(i, node, g)
            else:
                assert isinstance(node, Affine)
                arrived = affine(node, g, network.nodes[j].shape)
            waiting[j] = waiting[j] + arrived if j in waiting else arrived
    return waiting.get(0)


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
