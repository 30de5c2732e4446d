"""FAT with gradient alignment in two passes: the pair that almost every run of the paper uses.

The three input gradients (at the attack's start, at x, at x + noise) do not depend on each other, and neither do the
three passes that the weights' gradient needs (attacked images, x + noise, the direction at x + noise): each three run
as one batch. Same numbers as the two functions apart, fewer and larger kernels.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.attacks.ascent import input_gradient, project, random_start
from lipgraft.attacks.methods import fgsm_steps
from lipgraft.training.objectives.adversarial import AttackSettings
from lipgraft.training.regularisers.grad_align import (
    cross_entropy_of,
    directional_loss,
    misalignment,
    uniform_noise,
    use_tangent,
    with_gradient_of,
)
from lipgraft.training.settings import TrainSettings
from lipgraft.training.tangent import value, value_and_tangent
from lipgraft.training.task import Batch, Task, pixel_box


def applies(task: Task) -> bool:
    """FAT and gradient alignment are both asked for, and the network has a directional derivative."""
    settings = task.own(TrainSettings)
    return settings.objective == "fat" and settings.grad_align > 0 and use_tangent(task)


def fat_grad_align(task: Task, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of `fat`, its logits (B, n), and the value of `grad_align`."""
    network, settings = task.network, task.own(AttackSettings)
    assert network is not None
    x, y, eps = batch.x, batch.y, settings.eps
    lower, upper = pixel_box(x, eps)
    start = random_start(x, eps, lower, upper, task.generator)
    noisy = x + uniform_noise(task, x)
    gradients, _ = input_gradient(partial(value, network), torch.cat([start, x, noisy]), cross_entropy_of(y.repeat(3)))
    g, g1, g2 = gradients.chunk(3)
    (step,) = fgsm_steps(1, settings.attack_step_size)
    attacked = project(start + step * eps * g.sign(), lower, upper)
    alignment, v = misalignment(g1, g2)
    logits, tangent = value_and_tangent(network, torch.cat([attacked, noisy]), v)
    logits, at_noise = logits.chunk(2)
    loss = F.cross_entropy(logits, y)
    return loss, logits, with_gradient_of(alignment, directional_loss(at_noise, tangent, y))
