"""Convolutions, linear layers and zero padding."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_method, lowers_module
from lipgraft.network.nodes import Conv, ConvTranspose, Linear, Pad

Pair = tuple[int, int]


def pair(value: int | Sequence[int]) -> Pair:
    """PyTorch's way to give two sizes: one number for both, or a sequence of one or two."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return (int(sizes[0]), int(sizes[-1]))


@lowers_module(nn.Conv2d)
def conv2d_module(build: Builder, module: nn.Conv2d, input: Ref) -> Ref:
    if module.padding_mode != "zeros":
        raise build.unsupported(f"padding_mode is {module.padding_mode!r}, and only 'zeros' is affine here")
    padding = module.padding if isinstance(module.padding, str) else pair(module.padding)
    return conv2d(
        build, input, module.weight, module.bias, pair(module.stride), padding, pair(module.dilation), module.groups
    )


@lowers_function(F.conv2d)
def conv2d(
    build: Builder,
    input: Ref,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Ref:
    channels = weight.shape[1] * groups
    if len(input.shape) != 3 or input.shape[0] != channels:
        raise build.unsupported(f"it needs images of {channels} channels, and gets shape {input.shape}")
    step, spread, kernel = pair(stride), pair(dilation), (int(weight.shape[2]), int(weight.shape[3]))
    reach = (spread[0] * (kernel[0] - 1), spread[1] * (kernel[1] - 1))
    around = (0, 0)
    if padding == "same":
        # PyTorch puts the odd row or column of an asymmetric padding at the bottom or right.
        around = (reach[0] // 2, reach[1] // 2)
        if reach[0] % 2 or reach[1] % 2:
            (top, left), around = around, (0, 0)
            input = build.add(Pad, input, part="pad", pads=(left, reach[1] - left, top, reach[0] - top))
    elif not isinstance(padding, str):
        around = pair(padding)
    elif padding != "valid":
        raise build.unsupported(f"padding is {padding!r}")
    if any(n + 2 * p <= r for n, p, r in zip(input.shape[1:], around, reach, strict=True)):
        raise build.unsupported(f"its kernel does not fit into an input of shape {input.shape}")
    return build.add(
        Conv, input, weight=weight, bias=bias, stride=step, padding=around, dilation=spread, groups=int(groups)
    )


@lowers_module(nn.Linear)
def linear_module(build: Builder, module: nn.Linear, input: Ref) -> Ref:
    return linear(build, input, module.weight, module.bias)


@lowers_function(F.linear)
def linear(build: Builder, input: Ref, weight: Tensor, bias: Tensor | None = None) -> Ref:
    if weight.ndim != 2 or input.shape != (weight.shape[1],):
        raise build.unsupported(f"it needs vectors of {weight.shape[-1]} numbers, and gets shape {input.shape}")
    return build.add(Linear, input, weight=weight, bias=bias)


@lowers_function(operator.matmul, torch.matmul, torch.mm)
@lowers_method("matmul", "mm")
def matmul(build: Builder, input: Ref, other: Tensor) -> Ref:
    if not isinstance(input, Ref) or not isinstance(other, Tensor) or other.ndim != 2:
        raise build.unsupported("only the product x @ W with a constant matrix W is affine here")
    with torch.enable_grad():  # the transpose is a view: still live, also for gradients
        return linear(build, input, other.t())


@lowers_module(nn.ZeroPad2d, nn.ConstantPad2d)
def pad_module(build: Builder, module: nn.ConstantPad2d, input: Ref) -> Ref:
    return pad(build, input, module.padding, value=float(module.value))


@lowers_function(F.pad)
def pad(build: Builder, input: Ref, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Ref:
    if mode != "constant" or value:
        raise build.unsupported("only padding with zeros is supported")
    sides = [int(n) for n in pad]
    if len(input.shape) != 3 or any(sides[4:]) or min(sides, default=0) < 0:
        raise build.unsupported(f"only images can be padded, by numbers >= 0; got shape {input.shape}, sides {sides}")
    if not any(sides):
        return replace(input, memory=object())
    left, right, top, bottom = (*sides, 0, 0, 0, 0)[:4]
    return build.add(Pad, input, pads=(left, right, top, bottom))


@lowers_module(nn.ConvTranspose2d)
def conv_transpose2d_module(build: Builder, module: nn.ConvTranspose2d, input: Ref) -> Ref:
    return conv_transpose2d(
        build,
        input,
        module.weight,
        module.bias,
        pair(module.stride),
        pair(module.padding),  # type: ignore[arg-type]
        pair(module.output_padding),
        module.groups,
        pair(module.dilation),
    )


@lowers_function(F.conv_transpose2d)
def conv_transpose2d(
    build: Builder,
    input: Ref,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Ref:
    if len(input.shape) != 3 or input.shape[0] != len(weight):
        raise build.unsupported(f"it needs images of {len(weight)} channels, and gets shape {input.shape}")
    return build.add(
        ConvTranspose,
        input,
        weight=weight,
        bias=bias,
        stride=pair(stride),
        padding=pair(padding),
        fill=pair(output_padding),
        dilation=pair(dilation),
        groups=int(groups),
    )
