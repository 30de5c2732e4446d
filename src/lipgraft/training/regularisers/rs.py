"""ReLU stability (Xiao et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.settings import setting
from lipgraft.training.intervals import pre_activations
from lipgraft.training.task import Batch, StepSettings, Task, check


@dataclass(frozen=True)
class RsSettings(StepSettings):
    """Of `rs`."""

    rs: float = setting(0.0, "Weight of the ReLU stability loss.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("rs", self.rs, self.rs >= 0, "a finite number >= 0")


def rs(task: Task, batch: Batch) -> Tensor:
    """- sum tanh(1 + lb ub) over the neurons that are not grafted; mean over the batch."""
    total = batch.x.new_zeros(())
    for node, centre, radius in pre_activations(task, batch):
        stability = torch.tanh(1 + centre.square() - radius.square())  # lb ub = (c - r)(c + r)
        total = total - (stability if node.graft is None else torch.where(node.graft.mask, 0.0, stability)).sum()
    return total / len(batch.x)
