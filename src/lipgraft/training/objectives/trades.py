"""TRADES: accuracy on clean images, and outputs that do not move under attack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.attacks.methods import pgd_steps
from lipgraft.network import evaluated
from lipgraft.settings import setting
from lipgraft.training.objectives.adversarial import AttackSettings, adversarial
from lipgraft.training.task import Batch, Task, check


@dataclass(frozen=True)
class TradesSettings(AttackSettings):
    """Of `trades`."""

    trades_beta: float = setting(1.0, "Weight of the divergence between clean and attacked outputs in trades.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("trades_beta", self.trades_beta, self.trades_beta >= 0, "a finite number >= 0")


def divergence(logits: Tensor, clean: Tensor) -> Tensor:
    """KL(softmax(clean) || softmax(logits)) of each row. (B,)."""
    return F.kl_div(F.log_softmax(logits, 1), F.log_softmax(clean, 1), reduction="none", log_target=True).sum(1)


def trades(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x), y) + beta mean KL(f(x) || f(x + delta)); delta climbs the KL from a random start."""
    settings = task.own(TradesSettings)
    with torch.no_grad(), evaluated(task.model):
        before = task.model(batch.x)
    steps = pgd_steps(settings.attack_steps, settings.attack_step_size)
    attacked = task.model(adversarial(task, batch, steps, lambda logits: divergence(logits, before)))
    clean = task.model(batch.x)
    return F.cross_entropy(clean, batch.y) + settings.trades_beta * divergence(attacked, clean).mean(), attacked
