"""Interval bounds of the pre-activations over the clean box, for the losses that want neurons to be stable."""

from __future__ import annotations

from torch import Tensor

from lipgraft.bounds.interval import interval_bounds
from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.network.graph import Activation
from lipgraft.train.precision import products_in, resolve
from lipgraft.train.registry import Batch, Task


class _OrderedBox(Box):
    """A box whose ends are in order by construction: checking them would wait for the device in every step."""

    def __post_init__(self) -> None:
        pass


def pre_activations(task: Task, batch: Batch) -> list[tuple[Activation, Tensor, Tensor]]:
    """Each activation with lb, ub (B, *shape) of its input, over the eps-box around x within [0, 1].

    Never in bf16: the difference ub - lb of larger numbers is what these losses look at.
    """
    if task.network is None:
        raise SettingsError(
            "the slope and rs losses need a network without BatchNorm, dropout and reparametrised weights; fold "
            "BatchNorm with lipgraft.models.fold_batchnorm before fine-tuning."
        )
    eps, device = task.settings.eps, batch.x.device
    precision = resolve(task.settings.precision, device)
    with products_in("tf32" if precision == "bf16" else precision, device):
        box = _OrderedBox((batch.x - eps).clamp(min=0.0), (batch.x + eps).clamp(max=1.0))
        bounds = interval_bounds(task.network, box)
    return [(node, *bounds[node.inputs[0]]) for _, node in task.network.activations()]
