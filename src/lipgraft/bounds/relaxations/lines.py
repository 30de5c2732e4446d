"""Two lines around an activation, and the registry of relaxations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.errors import UnsupportedOperationError, unknown_name
from lipgraft.network.graph import Activation


@dataclass(frozen=True, eq=False)
class Lines:
    """lower_slope z + lower_intercept <= act(z) <= upper_slope z + upper_intercept, for every z in [lb, ub].

    Each tensor is (B, *shape), or (B, G, S, *shape) where every specification row has lines of its own. An intercept
    of None is zero.
    """

    lower_slope: Tensor
    lower_intercept: Tensor | None
    upper_slope: Tensor
    upper_intercept: Tensor | None

    def at(self, problems: slice) -> Lines:
        """The lines of some of the problems."""
        cut = [None if t is None else t[problems] for t in vars(self).values()]
        return Lines(*cut)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Relaxation:
    """How an activation is bounded.

    function: act(z, negative_slope) -> value, for interval arithmetic and evaluation.
    start: (lb, ub) -> alpha (k, *lb.shape), the k free numbers of the lines that plain CROWN takes.
    relax: (lb, ub, alpha, negative_slope) -> Lines, sound for every alpha in [0, 1].
    exact: (lb, ub) -> boolean, where act is a line on [lb, ub]; such a neuron is stable.
    one_sided: whether one of the two bounds can be enough to know that.
    """

    function: Callable[[Tensor, float], Tensor]
    start: Callable[[Tensor, Tensor], Tensor]
    relax: Callable[[Tensor, Tensor, Tensor, float], Lines]
    exact: Callable[[Tensor, Tensor], Tensor]
    one_sided: bool


RELAXATIONS: dict[str, Relaxation] = {}


def relaxation(kind: str) -> Relaxation:
    if kind not in RELAXATIONS:
        raise UnsupportedOperationError(unknown_name("activation", kind, list(RELAXATIONS)))
    return RELAXATIONS[kind]


def relax(node: Activation, lb: Tensor, ub: Tensor, alpha: Tensor | None = None) -> Lines:
    """The lines of an activation on [lb, ub]; grafted neurons are their own line: slope gamma, intercept omega."""
    rule = relaxation(node.kind)
    lines = rule.relax(lb, ub, rule.start(lb, ub) if alpha is None else alpha, node.negative_slope)
    if node.graft is None:
        return lines
    mask, gamma, omega = node.graft.mask, node.graft.gamma.detach(), node.graft.omega.detach()
    zero = torch.zeros((), dtype=lb.dtype, device=lb.device)

    def over(intercept: Tensor | None) -> Tensor:
        line = torch.where(mask, omega, zero if intercept is None else intercept)
        return line if line.ndim == lb.ndim else line.expand_as(lb)

    return Lines(
        torch.where(mask, gamma, lines.lower_slope),
        over(lines.lower_intercept),
        torch.where(mask, gamma, lines.upper_slope),
        over(lines.upper_intercept),
    )


def unstable(node: Activation, lb: Tensor, ub: Tensor) -> Tensor:
    """Where a bound is really needed: the neuron is not grafted and the activation is no line on [lb, ub].

    NaN counts as unstable. lb, ub: (B, *shape) -> boolean (B, *shape).
    """
    curved = ~relaxation(node.kind).exact(lb, ub)
    return curved if node.graft is None else curved & ~node.graft.mask
