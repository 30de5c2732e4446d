"""Regularisers of the warm-up in IBP training (Shi et al., 2021): tight bounds, and ReLUs of both signs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.network.graph import Scale
from lipgraft.settings import setting
from lipgraft.training.intervals import box_balls, graph_of
from lipgraft.training.task import Batch, StepSettings, Task, check

TOLERANCE = 0.5
"""Ratios down to this one are not penalised."""


@dataclass(frozen=True)
class IbpRegSettings(StepSettings):
    """Of `ibp-reg`."""

    ibp_reg: float = setting(0.0, "Weight of tightness and balance while eps is raised (published: 0.5); falls to 0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("ibp_reg", self.ibp_reg, self.ibp_reg >= 0, "a finite number >= 0")


def ibp_reg(task: Task, batch: Batch) -> Tensor:
    """(1 - eps_t / eps) (mean over layers of tightness + balance), each a relu(tol - ratio) / tol.

    tightness: ratio of the mean radius of the (normalised) images to that of the pre-activations.
    balance: ratio, smaller to larger, of the active neurons' summed centres to the inactive ones', and the same of
    their squared distances from the mean centre. Active is lb > 0, inactive ub < 0; grafted neurons are neither.
    """
    network, balls = graph_of(task, batch), batch.kept.bounded or box_balls(task, batch)
    layers = [node for _, node in network.activations() if not node.auxiliary]
    start = balls[1 if isinstance(network.nodes[1], Scale) else 0][1].mean()
    total = batch.x.new_zeros(())
    for node in layers:
        centre, radius = balls[node.inputs[0]]
        active, inactive = centre > radius, centre < -radius
        if node.graft is not None:
            active, inactive = active & ~node.graft.mask, inactive & ~node.graft.mask
        apart = (centre - centre.mean()).square()
        total = total + _shortfall(start / radius.mean().clamp(min=1e-12))
        total = total + _shortfall(_ratio((centre * active).mean(), (-centre * inactive).mean()))
        total = total + _shortfall(_ratio((apart * active).mean(), (apart * inactive).mean()))
    return (1 - batch.share) * total / max(len(layers), 1)


def _shortfall(ratio: Tensor) -> Tensor:
    return F.relu(TOLERANCE - ratio) / TOLERANCE


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """min(a / b, b / a) of two numbers >= 0; 1 where both are 0."""
    larger = torch.maximum(a, b)
    return torch.where(larger > 0, torch.minimum(a, b) / torch.where(larger > 0, larger, 1.0), 1.0)
