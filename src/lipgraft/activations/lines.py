"""Two lines around a curve."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
