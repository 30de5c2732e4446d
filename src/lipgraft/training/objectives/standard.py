"""Cross-entropy on clean images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lipgraft.training.task import Batch, Task


def standard(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x), y)."""
    logits = task.model(batch.x)
    return F.cross_entropy(logits, batch.y), logits
