"""Changes of shape that keep the order of the numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipgraft.interop.importer import Call, Value, imports


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


@imports("Transpose")
def transpose(call: Call) -> Value:
    """Only where axes of size 1 move: the order of the numbers must stay."""
    value = call.value()
    rank = len(value.shape)
    order = [int(n) for n in call.attribute("perm", list(range(rank))[::-1])]
    moved = [axis for axis in order if value.shape[axis] != 1]
    if moved != sorted(moved):
        raise call.unsupported(f"it changes the order of the numbers: axes {order} of shape {value.shape}")
    return call.reshaped(value, tuple(value.shape[axis] for axis in order))


@imports("Shape")
def shape(call: Call) -> Tensor:
    """A constant: of a batch of one."""
    value = call.value()
    end = call.attribute("end")
    return torch.tensor(value.shape[int(call.attribute("start", 0)) : None if end is None else int(end)])
