"""Two lines that meet at zero, as ReLU: convex, so the chord is above and any line through the kink is below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipgraft.activations.curve import Curve, Interval
from lipgraft.activations.lines import Lines


@dataclass(frozen=True)
class Kinked(Curve):
    """act(z) = max(z, a z), with a = `left` <= 1."""

    one_sided: ClassVar[bool] = True

    @property
    def left(self) -> float:
        """The slope left of zero."""
        raise NotImplementedError

    @property
    def kinks(self) -> tuple[float, ...]:
        return (0.0,)

    @property
    def slopes(self) -> tuple[float, ...]:
        return (self.left, 1.0)

    def derivative(self, z: Tensor) -> Tensor:
        """1 right of 0, a elsewhere."""
        return self._either(z > 0, z)

    def derivative_range(self, lb: Tensor, ub: Tensor) -> Interval:
        """1 where lb > 0, a where ub < 0, [a, 1] where the interval holds 0 (or is not a number)."""
        return self._either(lb > 0, lb), self._either(~(ub < 0), lb)

    def _either(self, active: Tensor, like: Tensor) -> Tensor:
        """1 where active, a elsewhere, rounded to like's dtype and to no coarser one on the way."""
        return torch.where(active, torch.ones_like(like), torch.full_like(like, self.left))

    def image(self, lb: Tensor, ub: Tensor) -> Interval:
        low, high = self(lb), self(ub)
        if self.left >= 0:
            return low, high
        # Not monotone: a V with its minimum at 0.
        bottom = torch.where((lb < 0) & (ub > 0), 0.0, torch.minimum(low, high))
        return bottom, torch.maximum(low, high)

    def start(self, lb: Tensor, ub: Tensor) -> Tensor:
        """The lower line that encloses the smaller area: slope 1 if ub > -lb, else a."""
        return (ub > -lb).to(lb.dtype).unsqueeze(0)

    def lines(self, lb: Tensor, ub: Tensor, anchors: Tensor | None = None) -> Callable[[Tensor], Lines]:
        """upper: the chord, slope s = (ub - a lb) / (ub - lb), intercept (a - s) lb.

        lower: slope a + alpha (1 - a), intercept 0.
        Active (lb >= 0): the line z. Inactive (ub <= 0): the line a z.
        Where ub - lb is no finite number, there is no chord: an infinite intercept proves nothing.
        """
        a = self.left
        active, inactive = lb >= 0, ub <= 0
        width = torch.where(active | inactive, 1.0, ub - lb)
        chord = (ub - a * lb) / width
        stable = a + active.to(lb.dtype) * (1.0 - a)

        def pick(unstable: Tensor) -> Tensor:
            return torch.where(active | inactive, stable, unstable)

        above = torch.where(torch.isfinite(width), (a - chord) * lb, torch.inf)
        upper, intercept = pick(chord), torch.where(active | inactive, 0.0, above)
        return lambda alpha: Lines(pick(a + alpha[0] * (1.0 - a)), None, upper, intercept)

    def exact(self, lb: Tensor, ub: Tensor) -> Tensor:
        """The kink is not inside."""
        return (lb >= 0) | (ub <= 0)
