"""Projected Adam on the lines and the multipliers of a batch of subproblems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.numerics import guard_lower, proved
from lipgraft.verify.bounding import Bounding

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8  # Adam's usual constants


@dataclass(frozen=True)
class Steps:
    """How long and how fast."""

    iterations: int
    lr_alpha: float
    lr_beta: float
    decay: float


@dataclass(frozen=True, eq=False)
class Optimised:
    """bound: (B,), the best seen; alpha, beta: what gave it; rows: (B, *root shape), of the last evaluation."""

    bound: Tensor
    alpha: Tensor
    beta: Tensor
    rows: Tensor


def optimise(
    bounding: Bounding,
    alpha: Tensor,
    beta: Tensor,
    steps: Steps,
    *,
    early: bool = False,
    late: Callable[[], bool] | None = None,
) -> Optimised:
    """The best bound over `steps.iterations` steps. alpha: (B, U) in [0, 1]; beta: (B, D) >= 0.

    early: stop when all are proved; this waits for the device in every step, so it is for CPUs. late: asked after every
    step, which may wait for the device too; once it holds, the best bound so far is the result.
    """
    best = torch.full_like(bounding.base[:, 0], -torch.inf)
    best_alpha, best_beta = alpha, beta
    moments = [torch.zeros_like(t) for t in (alpha, alpha, beta, beta)]
    lr = 1.0
    for t in range(steps.iterations + 1):
        last = t == steps.iterations
        if last:
            bound, rows = bounding.lower_bound(alpha, beta)
        else:
            a, b = alpha.detach().requires_grad_(), beta.detach().requires_grad_()
            with torch.enable_grad():
                bound, rows = bounding.lower_bound(a, b)
                last = not bound.requires_grad  # an affine function has nothing to choose
                if not last:
                    gradient = torch.autograd.grad(bound.sum(), [a, b], materialize_grads=True)
        bound, rows = guard_lower(bound.detach()), rows.detach()
        better = bound > best
        best = torch.where(better, bound, best)
        best_alpha = torch.where(better[:, None], alpha, best_alpha)
        best_beta = torch.where(better[:, None], beta, best_beta)
        if last or (early and bool(proved(best).all())) or (late is not None and late()):
            break
        first, second = 1 - FIRST ** (t + 1), 1 - SECOND ** (t + 1)
        alpha = (alpha + steps.lr_alpha * lr * _direction(gradient[0], moments, 0, first, second)).clamp(0, 1)
        beta = (beta + steps.lr_beta * lr * _direction(gradient[1], moments, 2, first, second)).clamp(min=0)
        lr *= steps.decay
    return Optimised(best, best_alpha, best_beta, rows)


def _direction(gradient: Tensor, moments: list[Tensor], at: int, first: float, second: float) -> Tensor:
    """Adam's step of ascent; moments[at] and moments[at + 1] are updated in place."""
    gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
    moments[at].lerp_(gradient, 1 - FIRST)
    moments[at + 1].mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
    return (moments[at] / first) / ((moments[at + 1] / second).sqrt() + TINY)
