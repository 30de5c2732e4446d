"""Sigmoid and tanh: convex left of zero, concave right of it, symmetric about the origin's value.

Above the curve on [lb, ub] lies the tangent at every t in [d, ub], where d is the point whose tangent passes through
(lb, f(lb)), or lb itself when lb >= 0. When d > ub no tangent helps and the chord is above. Below, mirrored.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipgraft.bounds.relaxations.lines import RELAXATIONS, Lines, Relaxation

Function = Callable[[Tensor], Tensor]

BISECTIONS = 40
NARROW = 1e-3  # below this width a chord's slope is mostly rounding


def tangent_point(f: Function, df: Function, lb: Tensor) -> Tensor:
    """The smallest t >= max(lb, 0) whose tangent is above f at lb, never smaller than exact; t = lb where lb >= 0.

    For lb < 0 it lies in [0, -lb]; bisection keeps the upper end, which is sound: later tangents are higher at lb.
    """
    below, above = torch.zeros_like(lb), lb.abs()
    for _ in range(BISECTIONS):
        t = (below + above) / 2
        high = f(t) + df(t) * (lb - t) >= f(lb)
        below, above = torch.where(high, below, t), torch.where(high, t, above)
    return torch.where(lb >= 0, lb, above)


def relax_s_shaped(f: Function, df: Function, curvature: float) -> Callable[..., Lines]:
    """curvature: a bound of |f''|."""

    def relax(lb: Tensor, ub: Tensor, alpha: Tensor, negative_slope: float) -> Lines:
        width = ub - lb
        chord = (f(ub) - f(lb)) / torch.where(width > 0, width, 1.0)
        first, last = tangent_point(f, df, lb), -tangent_point(f, df, -ub)
        low, high = alpha[0], alpha[1]

        def line(t: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
            slope = torch.where(tangent, df(t), chord)
            point = torch.where(tangent, t, lb)
            return slope, f(point) - slope * point

        upper_slope, upper_intercept = line(first + high * (ub - first), first < ub)
        lower_slope, lower_intercept = line(last - (1 - low) * (last - lb), last > lb)

        middle = (lb + ub) / 2
        narrow, slope = width < NARROW, df(middle)
        error = curvature * width.square() / 8
        intercept = f(middle) - slope * middle
        # The difference of two large ends may overflow; there is no chord then, and these intercepts prove nothing.
        known = torch.isfinite(width)
        return Lines(
            torch.where(narrow, slope, lower_slope),
            torch.where(known, torch.where(narrow, intercept - error, lower_intercept), -torch.inf),
            torch.where(narrow, slope, upper_slope),
            torch.where(known, torch.where(narrow, intercept + error, upper_intercept), torch.inf),
        )

    return relax


def start_s_shaped(lb: Tensor, ub: Tensor) -> Tensor:
    """Tangents touch in the middle of a one-sided interval, and pass through the ends of a two-sided one."""
    return torch.stack([1.0 - (ub <= 0).to(lb.dtype) * 0.5, (lb >= 0).to(lb.dtype) * 0.5])


def exact_s_shaped(lb: Tensor, ub: Tensor) -> Tensor:
    """An S-shaped curve is a line nowhere but on a point."""
    return lb == ub


def _dsigmoid(z: Tensor) -> Tensor:
    """exp(-|z|) / (1 + exp(-|z|))^2: even to the last digit, and exact in its tails, where s (1 - s) cancels."""
    e = torch.exp(-z.abs())
    return e / (1 + e).square()


def _dtanh(z: Tensor) -> Tensor:
    """tanh(z) = 2 sigmoid(2 z) - 1."""
    return 4 * _dsigmoid(2 * z)


RELAXATIONS["sigmoid"] = Relaxation(
    lambda z, _: z.sigmoid(),
    start_s_shaped,
    relax_s_shaped(torch.sigmoid, _dsigmoid, 0.0963),
    exact_s_shaped,
    one_sided=False,
)
RELAXATIONS["tanh"] = Relaxation(
    lambda z, _: z.tanh(),
    start_s_shaped,
    relax_s_shaped(torch.tanh, _dtanh, 0.7699),
    exact_s_shaped,
    one_sided=False,
)
