"""Small-weight pruning: the smallest weights of the whole network become zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipgraft.training.parameters import weights_of


@torch.no_grad()
def keep_masks(model: nn.Module, ratio: float) -> dict[str, Tensor]:
    """For each convolution and linear weight a tensor of 1 (keep) and 0, by parameter name.

    round(ratio N) of all N weights get 0: the smallest in magnitude over the whole network, ties in storage order.
    """
    weights = weights_of(model)
    magnitudes = torch.cat([weight.abs().flatten() for weight in weights.values()])
    keep = torch.ones_like(magnitudes)
    keep[magnitudes.argsort(stable=True)[: round(ratio * len(magnitudes))]] = 0
    parts = keep.split([weight.numel() for weight in weights.values()])  # type: ignore[no-untyped-call]
    # The masks get the weights' memory layout, so that multiplying them stays one kernel.
    return {n: torch.empty_like(w).copy_(part.view_as(w)) for (n, w), part in zip(weights.items(), parts, strict=True)}


@torch.no_grad()
def apply_masks(model: nn.Module, masks: dict[str, Tensor]) -> None:
    """Multiply each weight by its mask, in place."""
    weights = weights_of(model)
    if masks:
        torch._foreach_mul_([weights[name] for name in masks], list(masks.values()))
