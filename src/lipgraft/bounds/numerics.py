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


def guard(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """`guard_lower` and `guard_upper`; if either end is NaN, both become infinite."""
    nothing = lower.isnan() | upper.isnan()
    return guard_lower(torch.where(nothing, -torch.inf, lower)), guard_upper(torch.where(nothing, torch.inf, upper))


def unbounded_like(pre: tuple[Tensor, Tensor], image: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The image of an interval under an activation, without an end where the interval has none.

    A sigmoid's values lie in [0, 1] whatever its input; but an input without bounds may be NaN, and so its value.
    """
    lower = torch.where(torch.isfinite(pre[0]), image[0], -torch.inf)
    return lower, torch.where(torch.isfinite(pre[1]), image[1], torch.inf)


def proved(lower: Tensor) -> Tensor:
    """What "verified" means everywhere: the lower bound is finite and positive."""
    return torch.isfinite(lower) & (lower > 0)
