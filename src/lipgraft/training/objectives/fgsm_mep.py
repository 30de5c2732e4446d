"""FGSM-MEP: one-step training that starts from a momentum of each image's earlier perturbations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.training.objectives.prior import (
    moved,
    remember,
    reset_perturbations,
    smoothed_cross_entropy,
    starting_point,
)
from lipgraft.training.registry import Batch, Task, objective


def reset_sometimes(task: Task, epoch: int) -> None:
    """epoch: counted from 0."""
    if epoch % task.settings.prior_reset == 0:
        reset_perturbations(task)


@objective("fgsm-mep", memory=("delta", "momentum"), begin_epoch=reset_sometimes)
def fgsm_mep(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """LS(f(x + d_adv)) + weight MSE(f(x + d_adv), f(x + d)), with the gradient g of LS at the remembered d:

    m <- decay m + g / ||g||_1 (the norm over the whole batch), d_adv = clip(d + alpha sign g),
    next d = clip(d + alpha sign m).
    """
    settings = task.settings
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
