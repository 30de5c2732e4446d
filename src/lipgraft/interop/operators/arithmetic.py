"""Sums, products, maxima and minima of results, and arithmetic with constants."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.module import Applied, Difference, Divide, Multiply, Shift, Sum, Unshift
from lipgraft.interop.onnx_file import Shape
from lipgraft.network import Cosine, Floor, Power, Product, Quotient, Sign, Sine

FAR = 1e38  # files write the largest float32 where they mean no limit
# Limits up to NEAR are told from numbers of ordinary size to four digits, as imports are compared. Beyond it, a single
# limit is a Hardtanh, which subtracts nothing; different ones at once are refused beyond LARGEST.
NEAR, LARGEST = 1e3, 1e6
POWERS = (-4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8)  # exponents; larger ones soon overflow


@imports("Add")
def add(call: Call) -> Value:
    one, other = call.inputs[0], call.inputs[1]
    if isinstance(one, Value) and isinstance(other, Value):
        return together(call, Sum(), one, other)
    return _with_constant(call, Shift, 0 if isinstance(one, Value) else 1)


@imports("Sub")
def sub(call: Call) -> Value:
    one, other = call.inputs[0], call.inputs[1]
    if isinstance(one, Value) and isinstance(other, Value):
        return together(call, Difference(), one, other)
    if isinstance(one, Value):
        return _with_constant(call, Unshift, 0)
    return shifted(call, Shift, negative(call, call.value(1)), call.constant(0))


@imports("Mul")
def mul(call: Call) -> Value:
    one, other = call.inputs[0], call.inputs[1]
    if isinstance(one, Value) and isinstance(other, Value):
        same = (one.layer, one.shape) == (other.layer, other.shape)
        return _power(call, one, 2) if same else together(call, Applied(Product), one, other)
    return _with_constant(call, Multiply, 0 if isinstance(call.inputs[0], Value) else 1)


@imports("Div")
def div(call: Call) -> Value:
    one, other = call.inputs[0], call.inputs[1]
    if not isinstance(other, Value):
        return _with_constant(call, Divide, 0)
    if isinstance(one, Value):
        return together(call, Applied(Quotient), one, other)
    return shifted(call, Multiply, _power(call, other, -1), one)


@imports("Reciprocal")
def reciprocal(call: Call) -> Value:
    return _power(call, call.value(), -1)


@imports("Pow")
def power(call: Call) -> Value:
    value, exponents = call.value(), call.constant(1)
    if exponents is None or exponents.numel() != 1 or float(exponents) not in POWERS:
        raise call.unsupported(f"its exponent is not one whole number from {POWERS[0]} to {POWERS[-1]} other than 0")
    shape = _broadcast(call, value.shape, tuple(exponents.shape))
    return _power(call, call.reshaped(value, shape), int(exponents))


def _power(call: Call, value: Value, exponent: int) -> Value:
    return value if exponent == 1 else call.emit(Applied(Power, exponent=exponent), value, shape=value.shape)


@imports("Sin", "Cos", "Floor", "Sign")
def function(call: Call) -> Value:
    kind = {"Sin": Sine, "Cos": Cosine, "Floor": Floor, "Sign": Sign}[call.node.op_type]
    value = call.value()
    return call.emit(Applied(kind), value, shape=value.shape)


@imports("Neg")
def neg(call: Call) -> Value:
    return negative(call, call.value())


@imports("Max", "Min")
def extreme(call: Call) -> Value:
    """max(a, b) = a + relu(b - a), min(a, b) = a - relu(a - b), one pair after the other."""
    largest = call.node.op_type == "Max"
    values = [part for part in call.inputs if isinstance(part, Value)]
    best = values[0]
    others: list[Value | Tensor] = [*values[1:], *(part for part in call.inputs if isinstance(part, Tensor))]
    for other in others:
        best = _better(call, best, other, largest)
    return best


def _better(call: Call, one: Value, other: Value | Tensor, largest: bool) -> Value:
    if isinstance(other, Tensor):
        return _limited(call, one, other, largest)
    gain = together(call, Difference(), *((other, one) if largest else (one, other)))
    gain = call.emit(nn.ReLU(), gain, shape=gain.shape)
    return together(call, Sum() if largest else Difference(), one, gain)


def no_limit(call: Call, outward: Tensor) -> Tensor:
    """Where a limit is as good as none. outward: the limit, larger the further out it lies.

    Float32 has hardly a number beyond FAR. A network of doubles has: there, a finite limit of that size is refused.
    """
    far = outward >= FAR
    if call.importer.dtype == torch.float64 and bool((far & outward.isfinite()).any()):
        raise call.unsupported(f"a limit of it lies beyond {FAR:.0e}; leave it out if no number gets there")
    return far


def _limited(call: Call, value: Value, limit: Tensor, largest: bool) -> Value:
    """max(x, c) = relu(x - c) + c, min(x, c) = c - relu(c - x), where x is not lost in x - c."""
    shape = _broadcast(call, value.shape, tuple(limit.shape))
    if bool(no_limit(call, -limit if largest else limit).all()):
        return call.reshaped(_repeated(call, value, shape), shape)
    size = float(limit.abs().max())  # NaN where any is
    if not size < FAR:
        raise call.unsupported("a limit of it is not finite, or too large")
    first, end = float(limit.flatten()[0]), torch.finfo(call.importer.dtype).max
    if size > NEAR and bool((limit == first).all()):
        exact = nn.Hardtanh(first, end) if largest else nn.Hardtanh(-end, first)
        return call.emit(exact, call.reshaped(_repeated(call, value, shape), shape), shape=shape)
    if size > LARGEST:
        raise call.unsupported(
            f"a limit of it, {size:.3g}, is so large that float32 loses what is limited; export it with one limit for "
            "all numbers, or without limits that no number reaches"
        )
    more = shifted(call, Unshift, value, limit)
    more = call.emit(nn.ReLU(), more if largest else negative(call, more), shape=more.shape)
    return shifted(call, Shift, more if largest else negative(call, more), limit)


def clipped(call: Call, value: Value, low: Tensor | None, high: Tensor | None) -> Value:
    """A value between two limits, either of which may be missing."""
    value = value if low is None else _better(call, value, low, True)
    return value if high is None else _better(call, value, high, False)


@imports("Abs")
def absolute(call: Call) -> Value:
    """|x| = relu(x) + relu(-x)."""
    value = call.value()
    parts = [call.emit(nn.ReLU(), part, shape=value.shape) for part in (value, negative(call, value))]
    return call.emit(Sum(), *parts, shape=value.shape)


def negative(call: Call, value: Value) -> Value:
    return call.emit(Multiply(torch.tensor(-1.0, dtype=call.importer.dtype)), value, shape=value.shape)


def together(call: Call, layer: nn.Module, one: Value, other: Value) -> Value:
    """layer of two results, broadcast as ONNX does."""
    shape = _broadcast(call, one.shape, other.shape)
    one, other = _repeated(call, one, shape), _repeated(call, other, shape)
    return call.emit(layer, one, call.laid_out(other, one.laid), shape=shape)


def _repeated(call: Call, value: Value, shape: Shape) -> Value:
    """The value under a shape that it broadcasts to."""
    if math.prod(value.shape) == math.prod(shape):
        return value
    return call.moved(value, torch.arange(math.prod(value.shape)).reshape(value.shape).expand(shape))


def _with_constant(call: Call, layer: type[nn.Module], at: int) -> Value:
    return shifted(call, layer, call.value(at), call.constant(1 - at))


def shifted(call: Call, layer: type[nn.Module], value: Value, constant: Tensor | None) -> Value:
    """layer(constant) of the value, the constant broadcast as ONNX does."""
    if constant is None:
        raise call.unsupported("it lacks an input")
    constant = call.numbers(constant)
    shape = _broadcast(call, value.shape, tuple(constant.shape))
    value = _repeated(call, value, shape)
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
