"""Sums of results, and arithmetic with constants."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.module import Difference, Divide, Multiply, Shift, Sum, Unshift
from lipgraft.interop.onnx_file import Shape


@imports("Add")
def add(call: Call) -> Value:
    one, other = call.inputs[0], call.inputs[1]
    if isinstance(one, Value) and isinstance(other, Value):
        return _together(call, Sum(), one, other)
    return _with_constant(call, Shift, 0 if isinstance(one, Value) else 1)


@imports("Sub")
def sub(call: Call) -> Value:
    one, other = call.inputs[0], call.inputs[1]
    if isinstance(one, Value) and isinstance(other, Value):
        return _together(call, Difference(), one, other)
    if isinstance(one, Value):
        return _with_constant(call, Unshift, 0)
    return _shifted(call, Shift, _negative(call, call.value(1)), call.constant(0))


@imports("Mul")
def mul(call: Call) -> Value:
    if isinstance(call.inputs[0], Value) and isinstance(call.inputs[1], Value):
        raise call.unsupported("it multiplies two results of the network")
    return _with_constant(call, Multiply, 0 if isinstance(call.inputs[0], Value) else 1)


@imports("Div")
def div(call: Call) -> Value:
    if isinstance(call.inputs[1], Value):
        raise call.unsupported("it divides by a result of the network")
    return _with_constant(call, Divide, 0)


@imports("Neg")
def neg(call: Call) -> Value:
    return _negative(call, call.value())


def _negative(call: Call, value: Value) -> Value:
    return call.emit(Multiply(torch.tensor(-1.0, dtype=call.importer.dtype)), value, shape=value.shape)


def _together(call: Call, layer: nn.Module, one: Value, other: Value) -> Value:
    shape = _broadcast(call, one.shape, other.shape)
    if math.prod(one.shape) != math.prod(shape) or math.prod(other.shape) != math.prod(shape):
        raise call.unsupported(f"it repeats one of the shapes {one.shape} and {other.shape}")
    return call.emit(layer, one, call.laid_out(other, one.laid), shape=shape)


def _with_constant(call: Call, layer: type[nn.Module], at: int) -> Value:
    return _shifted(call, layer, call.value(at), call.constant(1 - at))


def _shifted(call: Call, layer: type[nn.Module], value: Value, constant: Tensor | None) -> Value:
    """layer(constant) of the value, the constant broadcast as ONNX does."""
    if constant is None:
        raise call.unsupported("it lacks an input")
    constant = call.numbers(constant)
    shape = _broadcast(call, value.shape, tuple(constant.shape))
    if math.prod(shape) != math.prod(value.shape):
        raise call.unsupported(f"its constant of shape {tuple(constant.shape)} repeats an input of shape {value.shape}")
    if constant.numel() == 1:
        return call.emit(layer(constant.reshape(())), value, shape=shape)
    if len(value.laid) == 1:  # a flat row takes a flat constant, whatever shape the file gives both
        return call.emit(layer(constant.expand(shape).flatten()), value, shape=shape)
    wide = constant.reshape(*[1] * (len(shape) - constant.ndim), *constant.shape)
    # An axis of size 1 in front is where the batch goes.
    row, wide = (shape[1:], wide[0]) if shape[0] == 1 and len(shape) > 1 else (shape, wide)
    return call.emit(layer(wide.contiguous()), call.laid_out(value, row), shape=shape)


def _broadcast(call: Call, one: Shape, other: Shape) -> Shape:
    try:
        return tuple(torch.broadcast_shapes(one, other))  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise call.unsupported(f"the shapes {one} and {other} do not fit") from None
