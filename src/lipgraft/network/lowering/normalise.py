"""BatchNorm with fixed statistics, and layers that do nothing in evaluation mode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_module


@lowers_module(nn.BatchNorm1d, nn.BatchNorm2d)
def batch_norm_module(build: Builder, module: nn.BatchNorm1d | nn.BatchNorm2d, input: Ref) -> Ref:
    return batch_norm(build, input, module.running_mean, module.running_var, module.weight, module.bias, eps=module.eps)


@lowers_function(F.batch_norm)
def batch_norm(
    build: Builder,
    input: Ref,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Ref:
    """(x - mean) / sqrt(var + eps) * weight + bias per channel, as scale * x + shift."""
    if training or running_mean is None or running_var is None:
        raise build.unsupported("it uses the statistics of the batch; keep running statistics and use evaluation mode")
    if not input.shape or input.shape[0] != len(running_mean):
        raise build.unsupported(f"it needs {len(running_mean)} channels, and gets shape {input.shape}")
    scale = torch.rsqrt(build.tensor(input, running_var) + eps)
    if weight is not None:
        scale = scale * build.tensor(input, weight)
    shift = -build.tensor(input, running_mean) * scale
    if bias is not None:
        shift = shift + build.tensor(input, bias)
    per_channel = (-1, *[1] * (len(input.shape) - 1))
    result = build.scale(input, scale.reshape(per_channel), shift.reshape(per_channel))
    build.foldable.add(result.position)
    return result


@lowers_module(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
def identity_module(build: Builder, module: nn.Module, input: Ref) -> Ref:
    return input


@lowers_function(F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout)
def dropout(build: Builder, input: Ref, p: float = 0.5, training: bool = True, inplace: bool = False) -> Ref:
    if training:
        raise build.unsupported("it drops values at random; pass training=self.training")
    return input
