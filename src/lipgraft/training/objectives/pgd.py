"""Adversarial training with several steps of projected gradient ascent."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lipgraft.attacks.methods import pgd_steps
from lipgraft.training.objectives.adversary import AttackSettings, adversarial
from lipgraft.training.task import Batch, Task


def pgd(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x + delta), y); delta: `attack_steps` steps of 2.5 eps / attack_steps from a random start."""
    settings = task.own(AttackSettings)
    steps = pgd_steps(settings.attack_steps, settings.attack_step_size)
    logits = task.model(adversarial(task, batch, steps))
    return F.cross_entropy(logits, batch.y), logits
