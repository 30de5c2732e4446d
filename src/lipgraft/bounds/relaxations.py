"""Lines around the activations of a network, and where they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lipgraft.activations import Curve, Lines
from lipgraft.network.graph import Activation

__all__ = ["Lines", "family", "relax", "unstable"]

ULPS = 16  # a chord is a difference, a quotient, a product and a difference, of terms up to steepest * |end|


def relax(node: Activation, lb: Tensor, ub: Tensor, *, live: bool = False) -> Lines:
    """The lines of an activation on [lb, ub] that plain CROWN takes. live: see `family`."""
    return family(node, lb, ub, live=live)(node.curve.start(lb, ub))


def family(
    node: Activation, lb: Tensor, ub: Tensor, *, live: bool = False, anchors: Tensor | None = None
) -> Callable[[Tensor], Lines]:
    """The lines of an activation on [lb, ub] as a function of alpha. anchors: see `Curve.lines`.

    Grafted neurons are their own line: slope gamma, intercept omega. In double precision, which proofs are made in, the
    lines hold the curve although they are rounded. live: gradients reach gamma and omega.
    """
    curve = node.curve.lines(lb, ub, anchors)
    if lb.dtype == torch.float64:
        curve = _rounded_outward(node.curve, curve, lb, ub)
    if node.graft is None:
        return curve
    mask, gamma, omega = node.graft.mask, node.graft.gamma, node.graft.omega
    if not live:
        gamma, omega = gamma.detach(), omega.detach()
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


def _rounded_outward(
    curve: Curve, lines: Callable[[Tensor], Lines], lb: Tensor, ub: Tensor
) -> Callable[[Tensor], Lines]:
    """The lines with their intercepts moved by more than rounding can have moved slope and intercept together."""
    size = curve.steepest * torch.maximum(lb.abs(), ub.abs()) + curve.at_zero
    off = torch.where(curve.exact(lb, ub), 0.0, ULPS * torch.finfo(lb.dtype).eps * size)

    def moved(alpha: Tensor) -> Lines:
        line = lines(alpha)
        low, high = line.lower_intercept, line.upper_intercept
        return replace(
            line,
            lower_intercept=None if low is None else low - off,
            upper_intercept=None if high is None else high + off,
        )

    return moved


def unstable(node: Activation, lb: Tensor, ub: Tensor) -> Tensor:
    """Where a bound is really needed: the neuron is not grafted and the activation is no line on [lb, ub].

    NaN counts as unstable. lb, ub: (B, *shape) -> boolean (B, *shape).
    """
    curved = ~node.curve.exact(lb, ub)
    return curved if node.graft is None else curved & ~node.graft.mask
