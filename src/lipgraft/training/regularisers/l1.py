"""Sparse weights."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.training.parameters import weights_of
from lipgraft.training.registry import Batch, Task, regulariser


@regulariser("l1")
def l1(task: Task, batch: Batch) -> Tensor:
    """Sum of |w| over the weights of convolutions and linear layers (no biases, slopes or intercepts)."""
    return torch.stack([weight.abs().sum() for weight in weights_of(task.model).values()]).sum()
