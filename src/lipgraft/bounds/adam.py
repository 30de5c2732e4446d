"""Adam's direction of ascent. `torch.optim` loads PyTorch's compiler at its first step, which takes seconds."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8  # Adam's usual constants


class Adam:
    """The running moments of one tensor's gradient."""

    def __init__(self, like: Tensor) -> None:
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)
        self.steps = 0

    def direction(self, gradient: Tensor) -> Tensor:
        """The next step of ascent, of size 1. What is not finite in the gradient counts as zero."""
        self.steps += 1
        gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
        self.first.lerp_(gradient, 1 - FIRST)
        self.second.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
        mean, square = self.first / (1 - FIRST**self.steps), self.second / (1 - SECOND**self.steps)
        return mean / (square.sqrt() + TINY)
