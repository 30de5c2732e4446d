"""Regularisers of the warm-up in IBP training (Shi et al., 2021): tight bounds, and ReLUs of both signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipgraft.bounds import fused
from lipgraft.network.graph import Activation, Scale
from lipgraft.settings import setting
from lipgraft.training.intervals import BLOCK, alike_in_memory, box_balls, graph_of
from lipgraft.training.task import Batch, StepSettings, Task, check

TOLERANCE = 0.5
"""Ratios down to this one are not penalised."""


@dataclass(frozen=True)
class IbpRegSettings(StepSettings):
    """Of `ibp-reg`."""

    ibp_reg: float = setting(0.0, "Weight of tightness and balance while eps grows (published: 0.5); decreases to 0.")

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
        width, on, off = _measures(node, *balls[node.inputs[0]])
        widths.append(width)
        active += on
        inactive += off
    start = balls[1 if isinstance(network.nodes[1], Scale) else 0][1].mean()
    tightness = _shortfall(start / torch.stack(widths).clamp(min=1e-12))
    balance = _shortfall(_ratio(torch.stack(active), torch.stack(inactive).abs()))
    return (1 - batch.share) * (tightness.sum() + balance.sum()) / len(layers)


def _measures(node: Activation, centre: Tensor, radius: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The mean radius; of the active neurons, then of the inactive ones, the summed centres and squared distances."""
    if node.graft is None and fused.usable(centre.detach(), radius.detach()) and alike_in_memory(centre, radius):
        radii, centres, *signed = _Sums.apply(centre, radius).unbind()  # type: ignore[no-untyped-call]
        mean = centres / centre.numel()
        sides = [[c, squares - 2 * mean * c + mean.square() * n] for n, c, squares in (signed[:3], signed[3:])]
        return radii / radius.numel(), sides[0], sides[1]
    positive, negative = centre > radius, centre < -radius
    if node.graft is not None:
        positive, negative = positive & ~node.graft.mask, negative & ~node.graft.mask
    apart = (centre - centre.mean()).square()
    sides = [[(centre * side).sum(), (apart * side).sum()] for side in (positive, negative)]
    return radius.mean(), sides[0], sides[1]


class _Sums(torch.autograd.Function):
    """Of all radii and of all centres; then the number of active neurons, the sum of their centres and of the squares
    of these; the same of the inactive ones: (8,). A GPU reads all neurons once for it, and once on the way back.
    """

    @staticmethod
    def forward(ctx: Any, centre: Tensor, radius: Tensor) -> Tensor:
        from lipgraft.training import kernels  # needs Triton, which comes with PyTorch for GPUs only

        ctx.save_for_backward(centre, radius)
        programs = -(-centre.numel() // BLOCK)
        out = centre.new_zeros(8, programs)
        if programs:
            kernels.signed_sums[(programs,)](centre, radius, out, centre.numel(), programs, BLOCK=BLOCK)
        return out.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor, Tensor]:
        from lipgraft.training import kernels

        centre, radius = ctx.saved_tensors
        by_centre, size = torch.empty_like(centre), centre.numel()
        if size:
            kernels.signed_sums_backward[(-(-size // BLOCK),)](
                centre, radius, by.contiguous(), by_centre, size, BLOCK=BLOCK
            )
        return by_centre, by[0].expand_as(radius)


def _shortfall(ratio: Tensor) -> Tensor:
    return F.relu(TOLERANCE - ratio) / TOLERANCE


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """min(a / b, b / a) of numbers >= 0; 1 where both are 0."""
    larger = torch.maximum(a, b)
    return torch.where(larger > 0, torch.minimum(a, b) / torch.where(larger > 0, larger, 1.0), 1.0)
