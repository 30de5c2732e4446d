"""Cross-entropy on clean images and on attacked ones: standard, fast adversarial and PGD training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from lipgraft.attacks.ascent import Loss, ascend, random_start
from lipgraft.attacks.methods import cross_entropy, fgsm_steps, pgd_steps
from lipgraft.network import evaluated
from lipgraft.settings import setting
from lipgraft.training.task import Batch, StepSettings, Task, check, pixel_box


@dataclass(frozen=True)
class AttackSettings(StepSettings):
    """Of every objective that attacks."""

    attack_steps: int = setting(10, "Steps of the attack inside pgd, trades and certified objectives.")
    attack_step_size: float | None = setting(
        None, "Step size of the attack as a multiple of its radius; by default the attack's own."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check("attack_steps", self.attack_steps, self.attack_steps >= 1, "a whole number >= 1")
        if self.attack_step_size is not None:
            check("attack_step_size", self.attack_step_size, self.attack_step_size > 0, "a finite number > 0")


def adversarial(task: Task, batch: Batch, steps: Sequence[float], loss: Loss | None = None) -> Tensor:
    """The end of an ascent of `loss` (cross-entropy by default) from a random start, in evaluation mode."""
    eps = task.settings.eps
    lower, upper = pixel_box(batch.x, eps)
    start = random_start(batch.x, eps, lower, upper, task.generator)
    climb = loss or (lambda logits: cross_entropy(logits, batch.y))
    with evaluated(task.model):
        x, _ = ascend(task.model, start, lower, upper, climb, eps=eps, steps=steps)
    return x


def standard(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x), y)."""
    logits = task.model(batch.x)
    return F.cross_entropy(logits, batch.y), logits


def fat(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x + delta), y); delta: one step of 1.25 eps along the gradient's sign from U(-eps, eps), kept in the box."""
    logits = task.model(adversarial(task, batch, fgsm_steps(1, task.own(AttackSettings).attack_step_size)))
    return F.cross_entropy(logits, batch.y), logits


def pgd(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x + delta), y); delta: `attack_steps` steps of 2.5 eps / attack_steps from a random start."""
    settings = task.own(AttackSettings)
    steps = pgd_steps(settings.attack_steps, settings.attack_step_size)
    logits = task.model(adversarial(task, batch, steps))
    return F.cross_entropy(logits, batch.y), logits
