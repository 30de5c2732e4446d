"""Sparse weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.settings import setting
from lipgraft.training.parameters import weights_of
from lipgraft.training.task import Batch, StepSettings, Task, check


@dataclass(frozen=True)
class L1Settings(StepSettings):
    """Of `l1`."""

    l1: float = setting(0.0, "Weight of the sum of absolute weights (paper: 1e-4).")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("l1", self.l1, self.l1 >= 0, "a finite number >= 0")


def l1(task: Task, batch: Batch) -> Tensor:
    """Sum of |w| over the weights of convolutions and linear layers (no biases, slopes or intercepts)."""
    return torch.stack([weight.abs().sum() for weight in weights_of(task.model).values()]).sum()
