"""Interval bounds of the pre-activations over the clean box, for the losses that want neurons to be stable."""

from __future__ import annotations

from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.network.graph import Activation
from lipgraft.training.precision import products_in, resolve
from lipgraft.training.registry import Batch, Task
from lipgraft.training.regularisers.balls import pre_activation_balls


def pre_activations(task: Task, batch: Batch) -> list[tuple[Activation, Tensor, Tensor]]:
    """Each activation with centre and radius (B, *shape) of its input, over the eps-box around x within [0, 1].

    The ReLUs that stand for max pooling are no neurons of the model, and are left out.

    Never in bf16: the radius, a small difference of larger numbers, is what these losses look at.
    """
    if task.network is None:
        raise SettingsError(
            "the slope and rs losses need a network without BatchNorm, dropout and reparametrised weights; fold "
            "BatchNorm with lipgraft.models.fold_batchnorm before fine-tuning."
        )
    eps, device = task.settings.eps, batch.x.device
    precision = resolve(task.settings.precision, device)
    lower, upper = (batch.x - eps).clamp(min=0.0), (batch.x + eps).clamp(max=1.0)
    with products_in("tf32" if precision == "bf16" else precision, device):
        balls = pre_activation_balls(task.network, ((upper + lower) / 2, (upper - lower) / 2))
        return [(node, *ball) for node, ball in balls if not node.auxiliary]
