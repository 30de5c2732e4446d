"""Lines around the activations of a network, and where they are needed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipgraft.activations import Lines
from lipgraft.network.graph import Activation

__all__ = ["Lines", "family", "relax", "unstable"]


def relax(node: Activation, lb: Tensor, ub: Tensor) -> Lines:
    """The lines of an activation on [lb, ub] that plain CROWN takes."""
    return family(node, lb, ub)(node.curve.start(lb, ub))


def family(node: Activation, lb: Tensor, ub: Tensor) -> Callable[[Tensor], Lines]:
    """The lines of an activation on [lb, ub] as a function of alpha.

    Grafted neurons are their own line: slope gamma, intercept omega.
    """
    curve = node.curve.lines(lb, ub)
    if node.graft is None:
        return curve
    mask, gamma, omega = node.graft.mask, node.graft.gamma.detach(), node.graft.omega.detach()
    zero = torch.zeros((), dtype=lb.dtype, device=lb.device)

    def over(intercept: Tensor | None) -> Tensor:
        line = torch.where(mask, omega, zero if intercept is None else intercept)
        return line if line.ndim == lb.ndim else line.expand_as(lb)

    def grafted(alpha: Tensor) -> Lines:
        lines = curve(alpha)
        return Lines(
            torch.where(mask, gamma, lines.lower_slope),
            over(lines.lower_intercept),
            torch.where(mask, gamma, lines.upper_slope),
            over(lines.upper_intercept),
        )

    return grafted


def unstable(node: Activation, lb: Tensor, ub: Tensor) -> Tensor:
    """Where a bound is really needed: the neuron is not grafted and the activation is no line on [lb, ub].

    NaN counts as unstable. lb, ub: (B, *shape) -> boolean (B, *shape).
    """
    curved = ~node.curve.exact(lb, ub)
    return curved if node.graft is None else curved & ~node.graft.mask
