"""Projected Adam on the lines and the multipliers of a batch of subproblems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.adam import Adam
from lipgraft.bounds.numerics import guard_lower, proved
from lipgraft.verification.bounding import Bounding


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
    climb_alpha, climb_beta = Adam(alpha), Adam(beta)
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
        alpha = (alpha + steps.lr_alpha * lr * climb_alpha.direction(gradient[0])).clamp(0, 1)
        beta = (beta + steps.lr_beta * lr * climb_beta.direction(gradient[1])).clamp(min=0)
        lr *= steps.decay
    return Optimised(best, best_alpha, best_beta, rows)
