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
    if not layers:
        return batch.x.new_zeros(())
    widths, active, inactive = [], [], []  # numbers of all layers, so that what follows is a few operations in all
    for node in layers:
        centre, radius = balls[node.inputs[0]]
        positive, negative = centre > radius, centre < -radius
        if node.graft is not None:
            positive, negative = positive & ~node.graft.mask, negative & ~node.graft.mask
        apart = (centre - centre.mean()).square()
        widths.append(radius.mean())
        active += [(centre * positive).sum(), (apart * positive).sum()]
        inactive += [(centre * negative).sum(), (apart * negative).sum()]
    start = balls[1 if isinstance(network.nodes[1], Scale) else 0][1].mean()
    tightness = _shortfall(start / torch.stack(widths).clamp(min=1e-12))
    balance = _shortfall(_ratio(torch.stack(active), torch.stack(inactive).abs()))
    return (1 - batch.share) * (tightness.sum() + balance.sum()) / len(layers)


def _shortfall(ratio: Tensor) -> Tensor:
    return F.relu(TOLERANCE - ratio) / TOLERANCE


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """min(a / b, b / a) of numbers >= 0; 1 where both are 0."""
    larger = torch.maximum(a, b)
    return torch.where(larger > 0, torch.minimum(a, b) / torch.where(larger > 0, larger, 1.0), 1.0)
