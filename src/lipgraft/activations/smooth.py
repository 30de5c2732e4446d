"""Smooth curves: lines of any slope, moved until they just hold the curve.

All that is needed is the curve, its derivative, the inflections (between them the derivative is monotone) and a bound
of the curvature. For a slope s the line above is s z + max (act(z) - s z). The maximum is at an end of the interval or
where act' falls through s, which happens at most once in each concave piece and is found there by bisection. On what is
left of the bracket the curve rises above its ends by at most curvature * width^2 / 8, which is added. Below, mirrored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from lipgraft.activations.curve import Curve, Interval
from lipgraft.activations.lines import Lines

BISECTIONS = 24  # of an interval of width 50 they leave 3e-6, which costs less than rounding does
ROUNDING = 4.0  # units in the last place by which an intercept may be off


@dataclass(frozen=True)
class Smooth(Curve):
    """A curve with a derivative everywhere.

    convex_left: whether the curve is convex, rather than concave, left of its first inflection.
    """

    convex_left: ClassVar[bool] = True
    through_upper = (1.0, 0.0)

    @property
    def inflections(self) -> tuple[float, ...]:
        """Where the curve changes between convex and concave, in order."""
        return ()

    @property
    def turns(self) -> tuple[float, ...]:
        """Where the curve changes between falling and rising; a monotone curve, which rises, has none."""
        return ()

    @property
    def curvature(self) -> float:
        """A bound of |act''|."""
        raise NotImplementedError

    def derivative_range(self, lb: Tensor, ub: Tensor) -> Interval:
        """The derivative is monotone between inflections, so its extremes lie there or at the ends."""
        return _extremes(self.derivative, lb, ub, self.inflections)

    def image(self, lb: Tensor, ub: Tensor) -> Interval:
        if not self.turns:
            return self(lb), self(ub)
        return _extremes(self, lb, ub, self.turns)

    def start(self, lb: Tensor, ub: Tensor) -> Tensor:
        """Of the least, the greatest and the chord's slope, on each side the one that encloses the smallest area."""
        low, high = self.derivative_range(lb, ub)
        width = ub - lb
        chord = (self(ub) - self(lb)) / torch.where(width > 0, width, 1.0)
        share = ((chord - low) / torch.where(high > low, high - low, 1.0)).nan_to_num(nan=0.5).clamp(0, 1)
        choices = torch.stack([torch.zeros_like(share), share, torch.ones_like(share)])
        slopes, middle = low + choices * (high - low), (lb + ub) / 2
        areas = [  # the value in the middle is the mean over the interval
            (slopes * middle + self._intercept(slopes, lb, ub, above=above)) * sign
            for above, sign in ((False, -1.0), (True, 1.0))
        ]
        return torch.stack([choices.gather(0, area.argmin(0, keepdim=True))[0] for area in areas])

    def lines(self, lb: Tensor, ub: Tensor, anchors: Tensor | None = None) -> Callable[[Tensor], Lines]:
        """alpha[0], alpha[1]: where the slopes below and above lie between the least and greatest derivative."""
        low, high = self.derivative_range(lb, ub)

        def chosen(alpha: Tensor) -> Lines:
            below, above = (low + share * (high - low) for share in alpha)
            return Lines(
                below, self._intercept(below, lb, ub, above=False), above, self._intercept(above, lb, ub, above=True)
            )

        return chosen

    def _intercept(self, slope: Tensor, lb: Tensor, ub: Tensor, *, above: bool) -> Tensor:
        """The intercept of the line of this slope that just holds the curve. Differentiable in the slope."""
        with torch.no_grad():
            place, off = self._contact(slope, lb, ub, 1.0 if above else -1.0)
            value = self(place)
            off = off + ROUNDING * torch.finfo(lb.dtype).eps * (value.abs() + (slope * place).abs())
        # As at any maximum, the place may be held while the slope moves.
        intercept = value - slope * place + (off if above else -off)
        known = torch.isfinite(ub - lb)  # the difference of two large ends may overflow: such a line proves nothing
        return torch.where(known, intercept, torch.inf if above else -torch.inf)

    def _contact(self, slope: Tensor, lb: Tensor, ub: Tensor, sign: float) -> tuple[Tensor, Tensor]:
        """Where sign * (act(z) - slope z) is largest on [lb, ub], and by how much it may be larger nearby."""

        def height(z: Tensor) -> Tensor:
            return sign * (self(z) - slope * z)

        left, right = lb.expand_as(slope), ub.expand_as(slope)
        place = torch.where(height(left) >= height(right), left, right)
        best, off = height(place), torch.zeros_like(slope)
        for begin, end in self._pieces(convex=sign < 0):
            a, b = left.clamp(begin, end), right.clamp(begin, end)
            for _ in range(BISECTIONS):
                t = (a + b) / 2
                rising = sign * (self.derivative(t) - slope) > 0
                a, b = torch.where(rising, t, a), torch.where(rising, b, t)
            for t in (a, b):
                found = height(t)
                better = (found > best) & (t >= left) & (t <= right)  # a piece may lie outside the interval
                place, best = torch.where(better, t, place), torch.where(better, found, best)
            # The true maximum of this piece lies in the bracket, whose ends have been tried.
            off = torch.maximum(off, self.curvature * (b - a).square() / 8)
        return place, off

    def _pieces(self, *, convex: bool) -> Iterator[tuple[float, float]]:
        """The intervals between inflections on which the curve is convex, or concave."""
        ends = (-torch.inf, *self.inflections, torch.inf)
        for number, piece in enumerate(pairwise(ends)):
            if (self.convex_left == (number % 2 == 0)) == convex:
                yield piece


def _extremes(function, lb: Tensor, ub: Tensor, turns: tuple[float, ...]) -> Interval:  # type: ignore[no-untyped-def]
    """The least and greatest value on [lb, ub] of a function that is monotone between its turns."""
    ends = function(lb), function(ub)
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    for turn in turns:
        value = function(torch.full_like(lb, turn))
        inside = (lb < turn) & (turn < ub)
        low = torch.where(inside, torch.minimum(low, value), low)
        high = torch.where(inside, torch.maximum(high, value), high)
    return low, high
