"""Sigmoid and tanh: convex left of zero, concave right of it, symmetric about the origin's value.

Above the curve on [lb, ub] lies the tangent at every t in [d, ub], where d is the point whose tangent passes through
(lb, f(lb)), or lb itself when lb >= 0. When d > ub, which is where the curve is steeper at ub than the chord, no
tangent helps and the chord is above. Below, mirrored. A d that is too large, as that of a wider interval, is sound.

d grows with -lb, so a table of d that is read at the next entry gives one that is a little too large. Finding d by
bisection takes hundreds of passes over all neurons; the table takes a few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lipgraft.activations.lines import Lines
from lipgraft.activations.smooth import Smooth

BISECTIONS = 40
CELLS = 2**15  # entries of the table up to lb = -1: entry k is for lb = -(k / CELLS)^2
FARTHEST = 64.0  # beyond it, the tangent at -lb does
NARROW = 1e-3  # below this width a chord's slope is mostly rounding


@dataclass(frozen=True)
class SShaped(Smooth):
    through_upper = (1.0, 1.0)

    @property
    def inflections(self) -> tuple[float, ...]:
        return (0.0,)

    def start(self, lb: Tensor, ub: Tensor) -> Tensor:
        """Tangents touch in the middle of a one-sided interval, and pass through the ends of a two-sided one."""
        return torch.stack([1.0 - (ub <= 0).to(lb.dtype) * 0.5, (lb >= 0).to(lb.dtype) * 0.5])

    def anchors(self, lb: Tensor, ub: Tensor, *, quick: bool = False) -> Tensor:
        """The tangent points of either side."""
        point = self._quick_tangent_point if quick else self._tangent_point
        return torch.stack([point(lb), -point(-ub)])

    def halved_anchors(self, z: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        point = self._quick_tangent_point(-z.abs())
        left = torch.stack([anchors[0], torch.where(z > 0, -point, z)])
        return left, torch.stack([torch.where(z < 0, point, z), anchors[1]])

    def lines(self, lb: Tensor, ub: Tensor, anchors: Tensor | None = None) -> Callable[[Tensor], Lines]:
        width = ub - lb
        chord = (self(ub) - self(lb)) / torch.where(width > 0, width, 1.0)
        first, last = self.anchors(lb, ub) if anchors is None else anchors
        first, last = torch.minimum(first, ub), torch.maximum(last, lb)
        above, below = self.derivative(ub) < chord, self.derivative(lb) < chord
        middle = (lb + ub) / 2
        narrow, slope = width < NARROW, self.derivative(middle)
        error = self.curvature * width.square() / 8
        intercept = self(middle) - slope * middle
        # The difference of two large ends may overflow; there is no chord then, and these intercepts prove nothing.
        known = torch.isfinite(width)

        def line(t: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
            slope = torch.where(tangent, self.derivative(t), chord)
            point = torch.where(tangent, t, lb)
            return slope, self(point) - slope * point

        def chosen(alpha: Tensor) -> Lines:
            low, high = alpha[0], alpha[1]
            upper_slope, upper_intercept = line(first + high * (ub - first), above)
            lower_slope, lower_intercept = line(last - (1 - low) * (last - lb), below)
            return Lines(
                torch.where(narrow, slope, lower_slope),
                torch.where(known, torch.where(narrow, intercept - error, lower_intercept), -torch.inf),
                torch.where(narrow, slope, upper_slope),
                torch.where(known, torch.where(narrow, intercept + error, upper_intercept), torch.inf),
            )

        return chosen

    def _tangent_point(self, lb: Tensor) -> Tensor:
        """The smallest t >= max(lb, 0) whose tangent is above the curve at lb, never smaller than exact.

        It is lb where lb >= 0. For lb < 0 it lies in [0, -lb]; bisection keeps the upper end, which is sound: later
        tangents are higher at lb.
        """
        below, above = torch.zeros_like(lb), lb.abs()
        for _ in range(BISECTIONS):
            t = (below + above) / 2
            high = self(t) + self.derivative(t) * (lb - t) >= self(lb)
            below, above = torch.where(high, below, t), torch.where(high, t, above)
        return torch.where(lb >= 0, lb, above)

    def _quick_tangent_point(self, lb: Tensor) -> Tensor:
        """A t >= max(lb, 0) whose tangent is above the curve at lb, hardly larger than the smallest. No gradients."""
        size = lb.abs()
        # A root that is rounded to nearest never falls below a whole number that it was above.
        entry = (size.clamp(max=FARTHEST).sqrt() * CELLS).nan_to_num().long() + 1
        known = _tangent_points(self, lb.device)[entry].to(lb.dtype)
        # By symmetry the tangent at -lb is always above.
        return torch.where(lb >= 0, lb, torch.where(size < FARTHEST, torch.minimum(known, size), size))


@cache
def _tangent_points(curve: SShaped, device: torch.device) -> Tensor:
    """The tangent points of lb = -(k / CELLS)^2 for k = 0, 1, ..., up to FARTHEST and one more, in double precision."""
    entries = torch.arange(int(FARTHEST**0.5 * CELLS) + 2, dtype=torch.float64)
    return curve._tangent_point(-(entries / CELLS).square()).to(device)
