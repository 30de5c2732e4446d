"""What FGSM-MEP and FGSM-PCO share: a perturbation remembered for each training image, and smoothed labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.settings import setting
from lipgraft.training.objectives.adversarial import AttackSettings
from lipgraft.training.task import Batch, Task, check


@dataclass(frozen=True)
class PriorSettings(AttackSettings):
    """Of `fgsm-mep` and `fgsm-pco`."""

    prior_weight: float = setting(10.0, "Weight of the consistency term in fgsm-mep and fgsm-pco.")
    true_share: float = setting(0.6, "Share of the true class in the smoothed labels of fgsm-mep and fgsm-pco.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("prior_weight", self.prior_weight, self.prior_weight >= 0, "a finite number >= 0")
        check("true_share", self.true_share, 0 < self.true_share <= 1, "in (0, 1]")


def smoothed_cross_entropy(logits: Tensor, y: Tensor, true_share: float) -> Tensor:
    """Cross-entropy against `true_share` for the true class and equal shares of the rest for the others."""
    classes = logits.shape[1]
    return F.cross_entropy(logits, y, label_smoothing=(1 - true_share) * classes / (classes - 1))


def reset_perturbations(task: Task) -> None:
    """delta <- alpha sign(U(-1, 1)), clipped to eps, for every training image; other memory <- 0."""
    size = min(step_size(task), 1.0) * task.settings.eps
    for name, tensor in task.memory.items():
        if name == "delta":
            tensor.uniform_(-1.0, 1.0, generator=task.generator).sign_().mul_(size)
        else:
            tensor.zero_()


def step_size(task: Task) -> float:
    """alpha as a multiple of eps: 1 unless set."""
    size = task.own(AttackSettings).attack_step_size
    return 1.0 if size is None else size


def starting_point(task: Task, batch: Batch) -> Tensor:
    """x + the remembered delta, within [0, 1]; requires a gradient."""
    delta = task.memory["delta"].index_select(0, batch.index)
    return (batch.x + delta).clamp(0.0, 1.0).detach().requires_grad_()


def moved(task: Task, batch: Batch, start: Tensor, direction: Tensor) -> Tensor:
    """start + alpha sign(direction), within eps of x and within [0, 1]."""
    eps = task.settings.eps
    x = start.detach() + step_size(task) * eps * direction.sign()
    return torch.minimum(torch.maximum(x, batch.x - eps), batch.x + eps).clamp(0.0, 1.0)


def remember(task: Task, batch: Batch, name: str, value: Tensor) -> None:
    """Store a value per image of the batch. The memory stays in the coordinates of the augmented image."""
    task.memory[name].index_copy_(0, batch.index, value)
