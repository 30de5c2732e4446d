"""ReLU stability (Xiao et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.training.registry import Batch, Task, regulariser
from lipgraft.training.regularisers.intervals import pre_activations


@regulariser("rs")
def rs(task: Task, batch: Batch) -> Tensor:
    """- sum tanh(1 + lb ub) over the neurons that are not grafted; mean over the batch."""
    total = batch.x.new_zeros(())
    for node, centre, radius in pre_activations(task, batch):
        stability = torch.tanh(1 + centre.square() - radius.square())  # lb ub = (c - r)(c + r)
        total = total - (stability if node.graft is None else torch.where(node.graft.mask, 0.0, stability)).sum()
    return total / len(batch.x)
