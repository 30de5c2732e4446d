"""Fast adversarial training: one gradient-sign step from a random start."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lipgraft.attacks.methods import fgsm_steps
from lipgraft.training.objectives.adversary import AttackSettings, adversarial
from lipgraft.training.task import Batch, Task


def fat(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x + delta), y); delta: one step of 1.25 eps along the gradient's sign from U(-eps, eps), kept in the box."""
    logits = task.model(adversarial(task, batch, fgsm_steps(1, task.own(AttackSettings).attack_step_size)))
    return F.cross_entropy(logits, batch.y), logits
