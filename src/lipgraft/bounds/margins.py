"""The rows of a specification that say "the true class stays above another one"."""

from __future__ import annotations

import torch
from torch import Tensor


def true_minus(y: Tensor, target: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """The rows e_y - e_target. y, target: (..., ) of shapes that broadcast -> (..., classes)."""
    eye = torch.eye(classes, dtype=dtype, device=y.device)
    return eye[y] - eye[target]


def other_classes(y: Tensor, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """For each image the S wrong classes, (B, S), and the rows "true minus wrong", (B, S, classes)."""
    target = torch.arange(classes - 1, device=y.device).expand(len(y), -1)
    target = target + (target >= y[:, None])
    return target, true_minus(y[:, None], target, classes, dtype)
