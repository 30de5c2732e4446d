"""What a number must be before it may prove anything: finite."""

from __future__ import annotations

import torch
from torch import Tensor


def guard_lower(lower: Tensor) -> Tensor:
    """A lower bound that is not a finite number proves nothing: it becomes -inf."""
    return torch.where(torch.isfinite(lower), lower, -torch.inf)


def guard_upper(upper: Tensor) -> Tensor:
    """An upper bound that is not a finite number proves nothing: it becomes +inf."""
    return torch.where(torch.isfinite(upper), upper, torch.inf)


def proved(lower: Tensor) -> Tensor:
    """What "verified" means everywhere: the lower bound is finite and positive."""
    return torch.isfinite(lower) & (lower > 0)
