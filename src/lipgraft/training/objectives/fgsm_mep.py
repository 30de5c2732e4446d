"""FGSM-MEP: one-step training that starts from a momentum of each image's earlier perturbations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.settings import setting
from lipgraft.training.objectives.prior import (
    PriorSettings,
    moved,
    remember,
    reset_perturbations,
    smoothed_cross_entropy,
    starting_point,
)
from lipgraft.training.task import Batch, Task, check


@dataclass(frozen=True)
class MepSettings(PriorSettings):
    """Of `fgsm-mep`."""

    prior_decay: float = setting(0.3, "Momentum of the stored gradients in fgsm-mep.")
    prior_reset: int = setting(40, "Epochs between two resets of the stored perturbations in fgsm-mep.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("prior_decay", self.prior_decay, 0 <= self.prior_decay < 1, "in [0, 1)")
        check("prior_reset", self.prior_reset, self.prior_reset >= 1, "a whole number >= 1")


def reset_sometimes(task: Task, epoch: int) -> None:
    """epoch: counted from 0."""
    if epoch % task.own(MepSettings).prior_reset == 0:
        reset_perturbations(task)


def fgsm_mep(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """LS(f(x + d_adv)) + weight MSE(f(x + d_adv), f(x + d)), with the gradient g of LS at the remembered d:

    m <- decay m + g / ||g||_1 (the norm over the whole batch), d_adv = clip(d + alpha sign g),
    next d = clip(d + alpha sign m).
    """
    settings = task.own(MepSettings)
    start = starting_point(task, batch)
    before = task.model(start)
    loss = smoothed_cross_entropy(before, batch.y, settings.true_share)
    (gradient,) = torch.autograd.grad(loss, start, retain_graph=True)
    norm = gradient.abs().sum()
    momentum = task.memory["momentum"].index_select(0, batch.index)
    momentum = settings.prior_decay * momentum + gradient / torch.where(norm > 0, norm, 1.0)
    attacked = moved(task, batch, start, gradient)
    remember(task, batch, "delta", moved(task, batch, start, momentum) - batch.x)
    remember(task, batch, "momentum", momentum)
    logits = task.model(attacked)
    loss = smoothed_cross_entropy(logits, batch.y, settings.true_share)
    return loss + settings.prior_weight * F.mse_loss(logits, before), logits
