"""The instability score."""

from __future__ import annotations

from torch import Tensor


def s_u(lb: Tensor, ub: Tensor) -> Tensor:
    """s_u(j) = sum over images i of 1[lb_j < 0 < ub_j]. lb, ub: (B, *shape) -> (*shape), whole numbers.

    Sigmoid and tanh are counted by the same rule: their curvature changes sign at 0.
    """
    return ((lb < 0) & (ub > 0)).sum(0)
