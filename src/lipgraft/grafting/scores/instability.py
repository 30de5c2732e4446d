"""The instability score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def s_u(lb: Tensor, ub: Tensor, bends: Sequence[float] = (0.0,)) -> Tensor:
    """s_u(j) = sum over images i of 1[lb_j < b < ub_j for some bend b]. lb, ub: (B, *shape) -> (*shape), whole numbers.

    bends: of the activation's curve; 0 for ReLU, and for the smooth curves, which bend most or turn there.
    """
    inside = torch.stack([(lb < bend) & (ub > bend) for bend in bends])
    return inside.any(0).sum(0)
