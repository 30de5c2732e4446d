"""Projected Adam: lines (alpha) and multipliers (beta) that make lower bounds high.

Without `early` and `late`, `optimise` neither waits for the device nor depends on values in Python, so that it can be
captured as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lipgraft.bounds.memory import Late, never
from lipgraft.bounds.sound import guard_lower, proved
from lipgraft.settings import converted, setting

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8  # Adam's usual constants


@dataclass(frozen=True)
class AlphaSettings:
    """How the lines are optimised."""

    iterations: int = setting(20, "Steps of projected Adam.")
    lr: float = setting(0.1, "Step size of Adam.")
    decay: float = setting(0.98, "Factor on the step size after every step.")

    def __post_init__(self) -> None:
        converted(self, "alpha.")


@dataclass(frozen=True, eq=False)
class Optimised:
    """bound: (P,), the best seen; alpha, beta: what gave it, unless `onward` is asked for.

    rows: (P, *root shape), of the last evaluation.
    """

    bound: Tensor
    alpha: Tensor
    beta: Tensor
    rows: Tensor

    def or_better(self, other: Optimised) -> Optimised:
        """What the other has found where its bound is better."""
        better = other.bound > self.bound

        def chosen(mine: Tensor, its: Tensor) -> Tensor:
            return torch.where(better.view(-1, *[1] * (mine.ndim - 1)), its, mine)

        return Optimised(*(chosen(getattr(self, name), getattr(other, name)) for name in vars(self)))


class Bounded(Protocol):
    """Lower bounds as a function of lines and multipliers, as `LowerBound` is one. base: (P, n), on their device."""

    base: Tensor

    def value(self, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]: ...


def optimise(
    function: Bounded,
    alpha: Tensor,
    beta: Tensor,
    settings: AlphaSettings,
    *,
    lr_beta: float = 0.0,
    onward: bool = False,
    early: bool = False,
    late: Late = never,
) -> Optimised:
    """The best bounds over the steps of projected Adam. alpha: (P, U k) in [0, 1]; beta: (P, D) >= 0.

    lr_beta: the step size for the multipliers; it decays like that for the lines. Lines whose step size is 0 stay.
    onward: of what is not proved, the last lines and multipliers are returned and not the best: who goes on from there
        gets further, where single steps are too short to gain at once.
    early: stop when all are proved; this waits for the device in every step, so it is for CPUs.
    late: asked after every step, which may wait for the device too; once it holds, the best bound so far is the result.
    """
    best = torch.full_like(function.base[:, 0], -torch.inf)
    best_alpha, best_beta = alpha, beta
    climb_alpha, climb_beta = Adam(alpha if settings.lr > 0 else alpha[:, :0]), Adam(beta)
    lines = settings.lr > 0
    splits = beta.shape[1] > 0  # without any, a dozen calls on nothing would still take their time
    scale = 1.0
    for t in range(settings.iterations + 1):
        last = t == settings.iterations
        if last:
            bound, rows = function.value(alpha, beta)
        else:
            a, b = alpha.detach().requires_grad_(lines), beta.detach().requires_grad_()
            with torch.enable_grad():
                bound, rows = function.value(a, b)
                last = not bound.requires_grad  # an affine function has nothing to choose
                if not last:
                    gradient = torch.autograd.grad(bound.sum(), [a, b] if lines else [b], materialize_grads=True)
        bound, rows = guard_lower(bound.detach()), rows.detach()
        better = bound > best
        best = torch.where(better, bound, best)
        if lines:
            best_alpha = torch.where(better[:, None], alpha, best_alpha)
        if splits:
            best_beta = torch.where(better[:, None], beta, best_beta)
        if last or (early and bool(proved(best).all())) or late():
            break
        if lines:
            alpha = (alpha + settings.lr * scale * climb_alpha.direction(gradient[0])).clamp(0, 1)
        if splits:
            beta = (beta + lr_beta * scale * climb_beta.direction(gradient[-1])).clamp(min=0)
        scale *= settings.decay
    if onward:
        done = proved(best)[:, None]
        best_alpha = torch.where(done, best_alpha, alpha) if lines else alpha
        best_beta = torch.where(done, best_beta, beta)
    return Optimised(best, best_alpha, best_beta, rows)


class Adam:
    """Adam's direction of ascent for one tensor. `torch.optim` would load PyTorch's compiler, which takes seconds."""

    def __init__(self, like: Tensor) -> None:
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)
        self.steps = 0

    def direction(self, gradient: Tensor) -> Tensor:
        """The next step of ascent, of size 1. What is not finite in the gradient counts as zero."""
        self.steps += 1
        gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
        self.first.lerp_(gradient, 1 - FIRST)
        self.second.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
        mean, square = self.first / (1 - FIRST**self.steps), self.second / (1 - SECOND**self.steps)
        return mean / (square.sqrt() + TINY)
