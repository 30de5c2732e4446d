"""Attacks as training uses them: fixed work, no waiting for the device, images in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from lipgraft.attacks.ascent import Loss, ascend, random_start
from lipgraft.network import evaluated
from lipgraft.training.registry import Batch, Task


def pixel_box(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The ends of the eps-box around x within [0, 1]."""
    return (x - eps).clamp(min=0.0), (x + eps).clamp(max=1.0)


def adversarial(task: Task, batch: Batch, steps: Sequence[float], loss: Loss | None = None) -> Tensor:
    """The end of an ascent of `loss` (cross-entropy by default) from a random start, in evaluation mode."""
    eps = task.settings.eps
    lower, upper = pixel_box(batch.x, eps)
    start = random_start(batch.x, eps, lower, upper, task.generator)
    climb = loss or (lambda logits: F.cross_entropy(logits, batch.y, reduction="none"))
    with evaluated(task.model):
        x, _ = ascend(task.model, start, lower, upper, climb, eps=eps, steps=steps)
    return x
