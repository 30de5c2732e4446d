"""Products with constant matrices, convolutions, zero padding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.onnx_file import Shape


@imports("Gemm")
def gemm(call: Call) -> Value:
    """alpha A' B' + beta C, one of A and B constant."""
    left, right, bias = call.inputs[0], call.inputs[1], call.constant(2)
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    if isinstance(left, Value) and isinstance(right, torch.Tensor):
        # A row times a matrix; with transA the row comes as a column.
        value = call.reshaped(left, left.shape[::-1]) if call.attribute("transA", 0) else left
        weight = right if call.attribute("transB", 0) else right.T
        shape: Shape = (1, len(weight))
    elif isinstance(left, torch.Tensor) and isinstance(right, Value):
        value = call.reshaped(right, right.shape[::-1]) if not call.attribute("transB", 0) else right
        weight = left.T if call.attribute("transA", 0) else left
        shape = (len(weight), 1)
    else:
        raise call.unsupported("only products with a constant matrix are affine")
    if value.shape != (1, weight.shape[1]):
        raise call.unsupported(f"it needs one vector of {weight.shape[1]} numbers, and gets shape {value.shape}")
    if bias is not None:
        if bias.numel() not in (1, len(weight)):
            raise call.unsupported(f"its bias has shape {tuple(bias.shape)} for {len(weight)} results")
        bias = (beta * call.numbers(bias)).flatten().expand(len(weight))
    return _linear(call, value, alpha * call.numbers(weight), bias, shape)


@imports("MatMul")
def matmul(call: Call) -> Value:
    """x W or W x with a constant matrix W (or vector)."""
    left, right = call.inputs[0], call.inputs[1]
    if isinstance(left, Value) and isinstance(right, torch.Tensor) and right.ndim in (1, 2):
        value, weight = left, right.T if right.ndim == 2 else right[None]
        shape = (*left.shape[:-1], *right.shape[1:])
        fits = left.shape[-1] == weight.shape[1]
    elif isinstance(left, torch.Tensor) and isinstance(right, Value) and left.ndim in (1, 2):
        value, weight = right, left if left.ndim == 2 else left[None]
        last = right.shape[-1:] if len(right.shape) > 1 else ()
        shape = (*right.shape[:-2], *left.shape[:-1], *last)
        fits = (right.shape[-2] if len(right.shape) > 1 else right.shape[0]) == weight.shape[1]
    else:
        raise call.unsupported("only products with a constant matrix are affine")
    if not fits or math.prod(value.shape) != weight.shape[1]:
        raise call.unsupported(f"it needs one vector of {weight.shape[1]} numbers, and gets shape {value.shape}")
    return _linear(call, value, call.numbers(weight), None, shape)


def _linear(call: Call, value: Value, weight: Tensor, bias: Tensor | None, shape: Shape) -> Value:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(bias.contiguous())
    return call.emit(layer, call.laid_out(value, (weight.shape[1],)), shape=shape)


@imports("Conv")
def conv(call: Call) -> Value:
    """Convolution of an image, or of a row of positions (which is an image of one row)."""
    value, weight, bias = call.value(), call.constant(1), call.constant(2)
    if weight is None or weight.ndim not in (3, 4) or len(value.shape) != weight.ndim or value.shape[0] != 1:
        raise call.unsupported(f"only convolutions in one or two dimensions are known; its input is {value.shape}")
    flat = weight.ndim == 3
    weight = call.numbers(weight)[:, :, None] if flat else call.numbers(weight)
    image = (value.shape[1], 1, value.shape[2]) if flat else value.shape[1:]
    kernel = (int(weight.shape[2]), int(weight.shape[3]))
    stride, dilation = (pair(call, name, flat, 1) for name in ("strides", "dilations"))
    groups = int(call.attribute("group", 1))
    if image[0] != weight.shape[1] * groups or len(weight) % groups:
        raise call.unsupported(f"its {groups} groups need {weight.shape[1] * groups} channels, not shape {value.shape}")
    reach = (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)
    sides = padding(call, image[1:], reach, stride, flat)
    x = call.laid_out(value, image)
    if sides[0] != sides[2] or sides[1] != sides[3]:
        x, sides = padded(call, x, sides), (0, 0, 0, 0)
    layer = nn.Conv2d(image[0], len(weight), kernel, stride, sides[:2], dilation, groups, bias is not None)
    layer.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(call.numbers(bias))
    if any(n + 2 * p < r for n, p, r in zip(x.laid[1:], sides[:2], reach, strict=True)):
        raise call.unsupported(f"its kernel does not fit into an input of shape {value.shape}")
    result = call.emit(layer, x)
    return call.reshaped(result, (1, result.laid[0], result.laid[2])) if flat else result


@imports("ConvTranspose")
def conv_transpose(call: Call) -> Value:
    image, weight, bias = call.image(call.value()), call.constant(1), call.constant(2)
    if weight is None or weight.ndim != 4 or image.laid[0] != len(weight):
        raise call.unsupported(f"only transposed convolutions of images are known; its input is {image.shape}")
    if call.attribute("auto_pad", "NOTSET") != "NOTSET" or call.attribute("output_shape") is not None:
        raise call.unsupported("its padding is not given by numbers")
    weight, groups = call.numbers(weight), int(call.attribute("group", 1))
    top, left, bottom, right = (int(n) for n in call.attribute("pads", [0] * 4))
    fill = pair(call, "output_padding", False, 0)
    if (top, left) != (bottom, right):
        raise call.unsupported("its padding differs from side to side")
    kernel = (int(weight.shape[2]), int(weight.shape[3]))
    stride, dilation = (pair(call, name, False, 1) for name in ("strides", "dilations"))
    outputs = int(weight.shape[1]) * groups
    layer = nn.ConvTranspose2d(
        len(weight), outputs, kernel, stride, (top, left), fill, groups, bias is not None, dilation
    )
    layer.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(call.numbers(bias))
    return call.emit(layer, image)


Sides = tuple[int, int, int, int]
"""(top, left, bottom, right), as ONNX orders them."""


def pair(call: Call, name: str, flat: bool, default: int) -> tuple[int, int]:
    """A size per axis of an image; of a single row, the rows get the default."""
    given = [int(n) for n in call.attribute(name, [default] * (1 if flat else 2))]
    return (default, given[0]) if flat else (given[0], given[1])


def padding(call: Call, size: Shape, reach: Shape, stride: Shape, flat: bool) -> Sides:
    """The zeros around an image, from `pads` or `auto_pad`."""
    mode = call.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0, 0, 0, 0)
    if mode == "NOTSET":
        given = [int(n) for n in call.attribute("pads", [0] * (2 if flat else 4))]
        top, left, bottom, right = (0, given[0], 0, given[1]) if flat else given
        if min(top, left, bottom, right) < 0:
            raise call.unsupported("negative padding")
        return (top, left, bottom, right)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise call.unsupported(f"auto_pad is {mode!r}")
    # SAME: ceil(size / stride) results; the odd zero goes to the end (UPPER) or to the beginning (LOWER).
    need = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(size, stride, reach, strict=True)]
    less, more = [n // 2 for n in need], [n - n // 2 for n in need]
    first, last = (less, more) if mode == "SAME_UPPER" else (more, less)
    return (first[0], first[1], last[0], last[1])


def padded(call: Call, image: Value, sides: Sides) -> Value:
    top, left, bottom, right = sides
    return call.emit(nn.ZeroPad2d((left, right, top, bottom)), image)


@imports("Pad")
def pad(call: Call) -> Value:
    value = call.value()
    sides = call.integers("pads", 1)
    number: Any = call.constant(2) if "pads" not in call.attributes else call.attribute("value", 0.0)
    if call.attribute("mode", "constant") != "constant" or (number is not None and float(number) != 0.0):
        raise call.unsupported("only padding with zeros is affine here")
    axes = call.constant(3) if "pads" not in call.attributes else None
    if axes is not None and axes.tolist() != list(range(len(value.shape))):
        raise call.unsupported("it pads a choice of axes")
    if sides is None or len(sides) != 2 * len(value.shape) or min(sides) < 0:
        raise call.unsupported(f"its pads {sides} do not fit shape {value.shape}")
    if not any(sides):
        return value
    image = call.image(value)
    if any(sides[axis] or sides[axis + 4] for axis in (0, 1)):
        raise call.unsupported("it pads batch or channels")
    return padded(call, image, (sides[2], sides[3], sides[6], sides[7]))
