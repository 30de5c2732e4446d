"""Average pooling, a grouped convolution with a constant weight; and max pooling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from lipgraft.network.lowering.affine import Pair, pair
from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_method, lowers_module
from lipgraft.network.nodes import Conv, MaxPool


@lowers_module(nn.AvgPool2d)
def avg_pool2d_module(build: Builder, module: nn.AvgPool2d, input: Ref) -> Ref:
    return avg_pool2d(
        build,
        input,
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    )


@lowers_function(F.avg_pool2d)
def avg_pool2d(
    build: Builder,
    input: Ref,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Ref:
    kernel, around = pair(kernel_size), pair(padding)
    step = pair(stride) if stride else kernel
    _need_image(build, input)
    if any(n + 2 * p < k for n, p, k in zip(input.shape[1:], around, kernel, strict=True)):
        raise build.unsupported(f"its window does not fit into an input of shape {input.shape}")
    if ceil_mode and _pooled(input, kernel, step, around, True) != _pooled(input, kernel, step, around, False):
        raise build.unsupported("ceil_mode adds windows that extend past the input")
    if count_include_pad or divisor_override or around == (0, 0):
        return _average(build, input, kernel, step, around, divisor_override)
    # Each window is divided by the number of its pixels that are not padding.
    mean = _average(build, input, kernel, step, around, None, part="sum")
    ones = torch.ones_like(input.example[:1, :1])
    share = F.avg_pool2d(ones, kernel, step, around)
    return build.scale(mean, 1.0 / share[0])


@lowers_module(nn.AdaptiveAvgPool2d)
def adaptive_avg_pool2d_module(build: Builder, module: nn.AdaptiveAvgPool2d, input: Ref) -> Ref:
    return adaptive_avg_pool2d(build, input, module.output_size)


@lowers_function(F.adaptive_avg_pool2d)
def adaptive_avg_pool2d(build: Builder, input: Ref, output_size: int | Sequence[int | None] | None) -> Ref:
    _need_image(build, input)
    wanted = tuple(output_size) if isinstance(output_size, Sequence) else (output_size, output_size)
    size = input.shape[1:]
    rows, columns = (n if w is None else int(w) for n, w in zip(size, wanted, strict=True))
    if min(rows, columns) < 1 or size[0] % rows or size[1] % columns:
        raise build.unsupported(f"its output size {(rows, columns)} does not divide the input's {size}")
    kernel = (size[0] // rows, size[1] // columns)
    return _average(build, input, kernel, kernel, (0, 0), None)


@lowers_function(torch.mean)
@lowers_method("mean")
def mean(build: Builder, input: Ref, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Ref:
    """The mean over rows or columns of images, or over the last axis of (channels, positions)."""
    axes = {d % input.example.ndim for d in ((dim,) if isinstance(dim, int) else dim or ())}
    shape = input.shape
    if len(shape) not in (2, 3) or not axes or not axes <= {2, 3}:
        raise build.unsupported(f"only means over the axes of an image are supported; shape {shape}, dim {dim}")
    image = input if len(shape) == 3 else build.reshape(input, (*shape, 1), part="image")
    kernel = (image.shape[1] if 2 in axes else 1, image.shape[2] if 3 in axes else 1)
    target = tuple(1 if d in axes else n for d, n in enumerate(shape, 1) if keepdim or d not in axes)
    pooled_shape = (image.shape[0], image.shape[1] // kernel[0], image.shape[2] // kernel[1])
    part = "" if target == pooled_shape else "pool"
    return build.reshape(_average(build, image, kernel, kernel, (0, 0), None, part=part), target)


def _average(
    build: Builder, x: Ref, kernel: Pair, step: Pair, around: Pair, divisor: int | None, *, part: str = ""
) -> Ref:
    channels, size = x.shape[0], kernel[0] * kernel[1]
    weight = x.example.new_full((channels, 1, *kernel), 1.0 / (divisor or size))
    return build.add(Conv, x, part=part, weight=weight, bias=None, stride=step, padding=around, groups=channels)


def _pooled(x: Ref, kernel: Pair, step: Pair, around: Pair, ceil_mode: bool) -> torch.Size:
    return F.avg_pool2d(x.example, kernel, step, around, ceil_mode).shape


def _need_image(build: Builder, x: Ref) -> None:
    if len(x.shape) != 3:
        raise build.unsupported(f"it needs images (channels, rows, columns), and gets shape {x.shape}")


@lowers_module(nn.MaxPool2d)
def max_pool2d_module(build: Builder, module: nn.MaxPool2d, input: Ref) -> Ref:
    return max_pool2d(
        build,
        input,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.ceil_mode,
        module.return_indices,
    )


@lowers_function(F.max_pool2d, torch.max_pool2d)
def max_pool2d(
    build: Builder,
    input: Ref,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Ref:
    _need_image(build, input)
    if return_indices:
        raise build.unsupported("it returns indices, which are not an affine function of the input")
    kernel, around, spread = pair(kernel_size), pair(padding), pair(dilation)
    step = pair(stride) if stride else kernel
    if any(n + 2 * p <= d * (k - 1) for n, p, d, k in zip(input.shape[1:], around, spread, kernel, strict=True)):
        raise build.unsupported(f"its window does not fit into an input of shape {input.shape}")
    return build.add(MaxPool, input, kernel=kernel, stride=step, padding=around, dilation=spread, ceil=ceil_mode)
