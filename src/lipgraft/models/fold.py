"""BatchNorm folded into the layer before it."""

from __future__ import annotations

import copy
import dataclasses
from typing import TypeVar

import torch
from torch import Tensor, nn

from lipgraft.errors import UnsupportedOperationError
from lipgraft.models.classifier import Classifier

M = TypeVar("M", bound=nn.Module)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


def fold_batchnorm(model: M) -> M:
    """A new module without BatchNorm whose outputs equal the old one's in eval mode; the old one is untouched.

    Each BatchNorm must follow a Conv2d or Linear directly, in an nn.Sequential, as in our networks.
    """
    folded = copy.deepcopy(model)
    for module in list(folded.modules()):
        if isinstance(module, nn.Sequential):
            _fold_sequence(module)
    left = [name for name, module in folded.named_modules() if isinstance(module, BatchNorm | nn.BatchNorm3d)]
    if left:
        raise UnsupportedOperationError(
            f"the BatchNorm {left[0]!r} does not follow a Conv2d or Linear in an nn.Sequential, so it cannot be folded."
        )
    if isinstance(folded, Classifier):
        folded.spec = dataclasses.replace(folded.spec, batchnorm=False)
    return folded


def _fold_sequence(sequence: nn.Sequential) -> None:
    before: nn.Module | None = None
    for name, module in list(sequence.named_children()):
        if isinstance(module, BatchNorm) and isinstance(before, nn.Conv2d | nn.Linear):
            _fold_pair(before, module)
            del sequence._modules[name]
        else:
            before = module


@torch.no_grad()
def _fold_pair(layer: nn.Conv2d | nn.Linear, bn: BatchNorm) -> None:
    """gamma (W x + b - mu) / sqrt(var + eps) + beta  =  (k W) x + k (b - mu) + beta,  k = gamma / sqrt(var + eps).

    In float64, so that folding itself adds no rounding error beyond the last one.
    """
    if bn.running_mean is None or bn.running_var is None:
        raise UnsupportedOperationError(
            "a BatchNorm without running statistics has no fixed form and cannot be folded."
        )
    mu, var = bn.running_mean.double(), bn.running_var.double()
    gamma = torch.ones_like(mu) if bn.weight is None else bn.weight.double()
    beta = torch.zeros_like(mu) if bn.bias is None else bn.bias.double()
    b: Tensor = torch.zeros_like(mu) if layer.bias is None else layer.bias.double()
    k = gamma / torch.sqrt(var + bn.eps)
    weight = layer.weight.double() * k.reshape(-1, *[1] * (layer.weight.ndim - 1))
    layer.weight.copy_(weight)
    layer.bias = nn.Parameter((k * (b - mu) + beta).to(layer.weight.dtype))
