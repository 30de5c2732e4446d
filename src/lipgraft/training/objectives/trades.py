"""TRADES: accuracy on clean images, and outputs that do not move under attack."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.attacks.methods import pgd_steps
from lipgraft.network import evaluated
from lipgraft.training.objectives.adversary import adversarial
from lipgraft.training.registry import Batch, Task, objective


def divergence(logits: Tensor, clean: Tensor) -> Tensor:
    """KL(softmax(clean) || softmax(logits)) of each row. (B,)."""
    return F.kl_div(F.log_softmax(logits, 1), F.log_softmax(clean, 1), reduction="none", log_target=True).sum(1)


@objective("trades")
def trades(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x), y) + beta mean KL(f(x) || f(x + delta)); delta climbs the KL from a random start."""
    settings = task.settings
    with torch.no_grad(), evaluated(task.model):
        before = task.model(batch.x)
    steps = pgd_steps(settings.attack_steps, settings.attack_step_size)
    attacked = task.model(adversarial(task, batch, steps, lambda logits: divergence(logits, before)))
    clean = task.model(batch.x)
    return F.cross_entropy(clean, batch.y) + settings.trades_beta * divergence(attacked, clean).mean(), attacked
