"""Products with constant matrices, sums, convolutions, zero padding."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.module import Divide, Multiply, Shift, Sum
from lipgraft.interop.onnx_file import Shape
from lipgraft.interop.operators.arithmetic import shifted, together


@imports("Gemm")
def gemm(call: Call) -> Value:
    """alpha A' B' + beta C, one of A and B constant."""
    left, right, bias = call.inputs[0], call.inputs[1], call.constant(2)
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    flipped = [bool(call.attribute(name, 0)) for name in ("transA", "transB")]
    if isinstance(left, Value) and isinstance(right, Tensor):
        matrix, constant = _turned(call, left, flipped[0]), right if flipped[1] else right.T
    elif isinstance(left, Tensor) and isinstance(right, Value):
        matrix, constant = _turned(call, right, not flipped[1]), left.T if flipped[0] else left
    else:
        raise call.unsupported("only products with a constant matrix are affine")
    weight, count = call.numbers(constant), len(constant)
    scaled = _exactly(weight, alpha)
    shift = None if bias is None else _exactly(call.numbers(bias), beta)
    vector = bias is not None and matrix.shape[0] == 1 and bias.numel() in (1, count)
    folded = shift.flatten().expand(count) if vector and scaled is not None and shift is not None else None
    result = products(call, matrix, weight if scaled is None else scaled, folded, (matrix.shape[0], count))
    if scaled is None:
        result = _times(call, result, alpha)
    if isinstance(left, Tensor):
        result = _turned(call, result, True)
    if bias is None or folded is not None:
        return result
    if shift is not None:
        return shifted(call, Shift, result, shift)
    # beta (0 result + C): a layer has no room for a product that it would round.
    apart = _times(call, shifted(call, Shift, _times(call, result, 0.0), bias), beta)
    return together(call, Sum(), result, apart)


def _exactly(numbers: Tensor, factor: float) -> Tensor | None:
    """The product if nothing of it is rounded: the factor is zero or a power of two, and no digit is too small."""
    product = numbers * factor
    if factor == 0.0 or (abs(math.frexp(factor)[0]) == 0.5 and torch.equal(product / factor, numbers)):
        return product
    return None


def _times(call: Call, value: Value, factor: float) -> Value:
    """The product with a number of the file, an attribute, as a layer of its own."""
    layer = Multiply(torch.tensor(factor, dtype=call.importer.dtype))
    return call.emit(layer, value, shape=value.shape)


def _turned(call: Call, value: Value, turn: bool) -> Value:
    """A matrix, transposed or as it is."""
    if len(value.shape) != 2:
        raise call.unsupported(f"it needs a matrix, and gets shape {value.shape}; add a Flatten before it")
    places = torch.arange(math.prod(value.shape)).reshape(value.shape)
    return call.moved(value, places.T) if turn else value


@imports("MatMul")
def matmul(call: Call) -> Value:
    """x W or W x with a constant matrix W (or vector)."""
    left, right = call.inputs[0], call.inputs[1]
    if isinstance(left, Value) and isinstance(right, Tensor) and right.ndim in (1, 2):
        shape = (*left.shape[:-1], *right.shape[1:])
        return products(call, left, call.numbers(right.T if right.ndim == 2 else right[None]), None, shape)
    if isinstance(left, Tensor) and isinstance(right, Value) and left.ndim in (1, 2):
        weight = call.numbers(left if left.ndim == 2 else left[None])
        if len(right.shape) == 1:
            return products(call, right, weight, None, tuple(left.shape[:-1]))
        places = torch.arange(math.prod(right.shape)).reshape(right.shape).transpose(-1, -2)
        turned = call.moved(right, places)
        result = products(call, turned, weight, None, (*turned.shape[:-1], len(weight)))
        places = torch.arange(math.prod(result.shape)).reshape(result.shape).transpose(-1, -2)
        shape = (*right.shape[:-2], *left.shape[:-1], right.shape[-1])
        return call.reshaped(call.moved(result, places), shape)
    raise call.unsupported("only products with one constant matrix or vector are affine here")


def products(call: Call, value: Value, weight: Tensor, bias: Tensor | None, shape: Shape) -> Value:
    """weight times every row along the value's last axis. weight: (m, n); shape: of the result, (..., m)."""
    outputs, inputs = weight.shape
    if not value.shape or value.shape[-1] != inputs:
        raise call.unsupported(f"it needs vectors of {inputs} numbers, and gets shape {value.shape}")
    count = math.prod(value.shape) // inputs
    if count == 1:
        layer = nn.Linear(inputs, outputs, bias=bias is not None)
        layer.weight = nn.Parameter(weight.contiguous())
        if bias is not None:
            layer.bias = nn.Parameter(bias.contiguous())
        return call.emit(layer, call.laid_out(value, (inputs,)), shape=shape)
    # Many vectors are an image of one column, whose channels a 1 x 1 convolution mixes.
    places = torch.arange(count * inputs).reshape(1, count, inputs, 1).transpose(1, 2)
    column = call.laid_out(call.moved(value, places), (inputs, count, 1))
    conv = nn.Conv2d(inputs, outputs, 1, bias=bias is not None)
    conv.weight = nn.Parameter(weight.contiguous()[:, :, None, None])
    if bias is not None:
        conv.bias = nn.Parameter(bias.contiguous())
    mixed = call.emit(conv, column)
    return call.moved(mixed, torch.arange(outputs * count).reshape(outputs, count).T.reshape(shape))


@imports("ReduceSum", "ReduceMean")
def reduced(call: Call) -> Value:
    """Sums and means over axes; over an image's rows and columns, the mean is global average pooling."""
    value, mean = call.value(), call.node.op_type == "ReduceMean"
    rank = len(value.shape)
    given = call.integers("axes", 1)
    if not given and call.attribute("noop_with_empty_axes", 0):
        return value
    axes = sorted({axis % rank for axis in given}) if given else list(range(rank))
    kept = [axis for axis in range(rank) if axis not in axes]
    keeps = bool(call.attribute("keepdims", 1))
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(value.shape) if keeps or axis in kept)
    if mean and rank == 4 and axes == [2, 3] and value.shape[0] == 1:
        return call.reshaped(call.emit(nn.AdaptiveAvgPool2d(1), call.image(value)), shape)
    size = math.prod(value.shape[axis] for axis in axes)
    places = torch.arange(math.prod(value.shape)).reshape(value.shape).permute(*kept, *axes).reshape(-1, size)
    # A share that is no power of two would be rounded: then the sum is divided, in the type that proofs compute in.
    share = _exactly(torch.ones(1, size, dtype=call.importer.dtype), 1.0 / size) if mean else None
    weight = torch.ones(1, size, dtype=call.importer.dtype) if share is None else share
    result = products(call, call.moved(value, places), weight, None, (len(places), 1))
    if mean and share is None:
        result = shifted(call, Divide, result, torch.tensor(float(size), dtype=torch.float64))
    return call.reshaped(result, shape)


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
    rank = len(value.shape)
    given = call.constant(3) if "pads" not in call.attributes else None
    axes = list(range(rank)) if given is None else [int(axis) % rank for axis in given.flatten()]
    if sides is None or len(sides) != 2 * len(axes):
        raise call.unsupported(f"its pads {sides} do not fit shape {value.shape}")
    ends = {axis: (sides[i], sides[i + len(axes)]) for i, axis in enumerate(axes)}
    image = rank == 4 and value.shape[0] == 1 and not any(any(ends.get(axis, ())) for axis in (0, 1))
    if image and min(sides) >= 0 and any(sides):
        top, bottom, left, right = (*ends.get(2, (0, 0)), *ends.get(3, (0, 0)))
        return padded(call, call.image(value), (top, left, bottom, right))
    places = torch.arange(math.prod(value.shape)).reshape(value.shape)
    return call.moved(
        value, F.pad(places, [n for axis in reversed(range(rank)) for n in ends.get(axis, (0, 0))], value=-1)
    )
