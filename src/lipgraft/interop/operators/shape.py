"""Changes of shape and order: every number of the result is one of the input, or a constant."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.module import Shift, Sum
from lipgraft.interop.onnx_file import Shape


@imports("Flatten")
def flatten(call: Call) -> Value:
    value = call.value()
    axis = int(call.attribute("axis", 1))
    axis = axis + len(value.shape) if axis < 0 else axis
    return call.reshaped(value, (math.prod(value.shape[:axis]), math.prod(value.shape[axis:])))


@imports("Reshape")
def reshape(call: Call) -> Value:
    value, sizes = call.value(), call.integers("shape", 1)
    if sizes is None or (call.attribute("allowzero", 0) and 0 in sizes) or sizes.count(-1) > 1:
        raise call.unsupported(f"the shape {sizes} cannot be used")
    if any(n == 0 and i >= len(value.shape) for i, n in enumerate(sizes)):
        raise call.unsupported(f"the shape {sizes} copies an axis that {value.shape} does not have")
    shape = [value.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    if -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = math.prod(value.shape) // max(rest, 1)
    return call.reshaped(value, tuple(shape))


@imports("Squeeze")
def squeeze(call: Call) -> Value:
    value, axes = call.value(), call.integers("axes", 1)
    rank = len(value.shape)
    gone = {i for i, n in enumerate(value.shape) if n == 1} if axes is None else {axis % rank for axis in axes}
    return call.reshaped(value, tuple(n for i, n in enumerate(value.shape) if i not in gone))


@imports("Unsqueeze")
def unsqueeze(call: Call) -> Value:
    value, axes = call.value(), call.integers("axes", 1) or []
    rank = len(value.shape) + len(axes)
    new, old = {axis % rank for axis in axes}, iter(value.shape)
    return call.reshaped(value, tuple(1 if i in new else next(old) for i in range(rank)))


@imports("Transpose", "Slice", "Gather", "GatherElements", "GatherND", "Split", "Expand", "Tile", "DepthToSpace",
         "SpaceToDepth")  # fmt: skip
def moving(call: Call) -> tuple[Value, ...]:
    """Operators that only move numbers: where to is seen by giving them the numbers' places instead."""
    value = call.value()
    constants = [call.constant(i) for i in range(1, len(call.inputs))]
    places = torch.arange(math.prod(value.shape)).reshape(value.shape)
    results = call.importer.computed(call.node, [places, *constants])
    return tuple(call.moved(value, part) for part in results.values() if isinstance(part, Tensor))


@imports("Concat")
def concat(call: Call) -> Value:
    """The sum of the parts, each in its place between zeros; constants are added at the end."""
    parts = [part for part in call.inputs if part is not None]
    sizes = [math.prod(part.shape) for part in parts]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    numbered = [torch.arange(n).reshape(part.shape) + k for n, k, part in zip(sizes, starts, parts, strict=True)]
    axis = int(call.attribute("axis", 1))
    try:
        joined = torch.cat(numbered, axis)
    except (RuntimeError, IndexError) as error:
        raise call.unsupported(f"its parts do not fit together ({error})") from None
    total: Value | None = None
    constant = torch.zeros(joined.shape, dtype=call.importer.dtype)
    for part, start, size in zip(parts, starts, sizes, strict=True):
        own = (joined >= start) & (joined < start + size)
        if isinstance(part, Value):
            placed = call.moved(part, torch.where(own, joined - start, -1))
            total = placed if total is None else call.emit(Sum(), total, placed, shape=total.shape)
        else:
            constant[own] = call.numbers(part).flatten()[joined[own] - start]
    assert total is not None  # a node of constants alone never comes here
    return call.emit(Shift(constant.reshape(total.laid)), total, shape=total.shape) if constant.any() else total


@imports("Upsample", "Resize")
def upsample(call: Call) -> Value:
    """Nearest neighbours, by whole numbers: every number is repeated along its axes."""
    value, old = call.value(), call.node.op_type == "Upsample"
    mode, where = call.attribute("mode", "nearest"), call.attribute("coordinate_transformation_mode", "half_pixel")
    factors = _factors(call, value.shape, old)
    if mode != "nearest" or factors is None or any(n < 1 or n != int(n) for n in factors):
        raise call.unsupported("only nearest neighbours and whole factors move numbers; export it with these")
    if where not in ("half_pixel", "asymmetric", "pytorch_half_pixel"):
        raise call.unsupported(f"its coordinates are {where!r}; export it with 'asymmetric'")
    places = torch.arange(math.prod(value.shape)).reshape(value.shape)
    for axis, factor in enumerate(factors):
        places = places.repeat_interleave(int(factor), axis)
    return call.moved(value, places)


def _factors(call: Call, shape: Shape, old: bool) -> list[float] | None:
    """How often each axis is repeated: by the new sizes or the scales of all axes, or of those in `axes` (opset 18)."""
    scales = call.attribute("scales") or call.constant(1 if old or call.opset < 11 else 2)
    sizes = None if old else call.constant(3)
    by_size = sizes is not None and len(sizes) > 0
    given = sizes if by_size else scales
    if given is None or not len(given):
        return None
    axes = [int(axis) % len(shape) for axis in call.attribute("axes") or range(len(shape))]
    if len(axes) != len(given):
        raise call.unsupported(f"it has {len(given)} sizes or scales for {len(axes)} axes")
    factors = [1.0] * len(shape)
    for axis, number in zip(axes, given, strict=True):
        factors[axis] = float(number) / shape[axis] if by_size else float(number)
    return factors


@imports("Shape")
def shape(call: Call) -> Tensor:
    """A constant: of a batch of one."""
    value = call.value()
    end = call.attribute("end")
    return torch.tensor(value.shape[int(call.attribute("start", 0)) : None if end is None else int(end)])
