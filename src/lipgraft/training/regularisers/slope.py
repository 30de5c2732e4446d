"""The paper's slope loss: slopes of upper bounds should be those of stable neurons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipgraft.settings import setting
from lipgraft.training.intervals import pre_activations
from lipgraft.training.task import Batch, StepSettings, Task, check

INNER = {"printed": 1.0, "symmetric": 2.0}
"""The c of 1 - tanh(k (1 - c s)^2): 1 as printed; 2 makes it largest at s = 1/2 and small at both ends."""


def penalty(s: Tensor, form: str, k: float) -> Tensor:
    """1 - tanh(k (1 - s)^2) as printed, or the symmetric 1 - tanh(k (1 - 2s)^2), largest at s = 1/2."""
    return 1 - torch.tanh(k * (1 - INNER[form] * s).square())


@dataclass(frozen=True)
class SlopeSettings(StepSettings):
    """Of `slope`."""

    slope: float = setting(0.0, "Weight of the slope loss (paper: 5e-5).")
    slope_form: str = setting(
        "printed",
        "printed: 1 - tanh(k (1-s)^2), as in the paper; symmetric: 1 - tanh(k (1-2s)^2).",
        choices=("printed", "symmetric"),
    )
    slope_k: float = setting(2.0, "The k of the slope loss.")
    slope_scope: str = setting(
        "all", "Neurons in the slope loss: all, only unstable or only grafted.", choices=("all", "unstable", "grafted")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check("slope", self.slope, self.slope >= 0, "a finite number >= 0")
        check("slope_k", self.slope_k, self.slope_k >= 0, "a finite number >= 0")


def slope(task: Task, batch: Batch) -> Tensor:
    """Sum of the penalty of s = ub / (ub - lb) over unstable neurons, mean over the batch; plus that of s = gamma
    over grafted neurons. Stable neurons do not count.
    """
    settings = task.own(SlopeSettings)
    total = batch.x.new_zeros(())
    for node, centre, radius in pre_activations(task, batch):
        if settings.slope_scope != "grafted":
            unstable = centre.abs() < radius
            if node.graft is not None:
                unstable = unstable & ~node.graft.mask
            chords = chord_penalty(centre, radius, unstable, settings.slope_form, settings.slope_k)
            total = total + chords / len(centre)
        if settings.slope_scope != "unstable" and node.graft is not None:
            lines = penalty(node.graft.gamma, settings.slope_form, settings.slope_k)
            total = total + torch.where(node.graft.mask, lines, 0.0).sum()
    return total


def chord_penalty(centre: Tensor, radius: Tensor, counted: Tensor, form: str, k: float) -> Tensor:
    """The sum of the penalties of the chords' slopes s = ub / (ub - lb), over the counted neurons. All (B, *shape)."""
    total: Tensor = _ChordPenalty.apply(centre, radius, counted, form, k)  # type: ignore[no-untyped-call]
    return total


class _ChordPenalty(torch.autograd.Function):
    """The gradient is found on the way forward: half the operations of what autograd would record."""

    @staticmethod
    def forward(ctx: Any, centre: Tensor, radius: Tensor, counted: Tensor, form: str, k: float) -> Tensor:
        half = INNER[form] / 2
        radius = torch.where(counted, radius, 1.0)  # no 0/0
        ratio = centre / radius  # s = (1 + ratio) / 2
        t = (1 - half) - half * ratio
        value = torch.tanh(k * t.square())
        # by the ratio: 2 k half t (1 - tanh^2); the ratio by centre: 1 / radius, by radius: -ratio / radius
        by_centre = torch.where(counted, (2 * k * half) * t * (1 - value.square()) / radius, 0.0)
        ctx.save_for_backward(by_centre, ratio)
        return torch.where(counted, 1 - value, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        by_centre, ratio = ctx.saved_tensors
        by_centre = gradient * by_centre
        return by_centre, -by_centre * ratio, None, None, None
