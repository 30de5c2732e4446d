"""FGSM-PCO: one-step training on a mixture of the remembered and the new perturbation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.training.objectives.prior import (
    PriorSettings,
    moved,
    remember,
    reset_perturbations,
    smoothed_cross_entropy,
    starting_point,
)
from lipgraft.training.task import Batch, Task

REACH = 1.5
"""How far the mixture reaches beyond the new perturbation."""


def reset_once(task: Task, epoch: int) -> None:
    """epoch: counted from 0."""
    if epoch == 0:
        reset_perturbations(task)


def fgsm_pco(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """LS(f(x_mix)) + weight |MSE(f(x + d_F), f(x + d)) - MSE(f(x + d_F), f(x_mix))|, with the remembered d,

    d_F = clip(d + alpha sign g), c = 1 - softmax(f(x + d))_y, x_mix = c (x + d) + (1 - c)(x + 1.5 d_F); next d = d_F.
    """
    settings = task.own(PriorSettings)
    start = starting_point(task, batch)
    before = task.model(start)
    loss = smoothed_cross_entropy(before, batch.y, settings.true_share)
    (gradient,) = torch.autograd.grad(loss, start, retain_graph=True)
    attacked = moved(task, batch, start, gradient)
    remember(task, batch, "delta", attacked - batch.x)
    c = 1 - before.float().softmax(1).gather(1, batch.y[:, None]).reshape(-1, *[1] * (batch.x.ndim - 1))
    mixed = c * start.detach() + (1 - c) * (batch.x + REACH * (attacked - batch.x))
    after, logits = task.model(attacked), task.model(mixed)
    drift = F.mse_loss(after, before) - F.mse_loss(after, logits)
    return smoothed_cross_entropy(logits, batch.y, settings.true_share) + settings.prior_weight * drift.abs(), logits
