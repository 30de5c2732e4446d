"""Sums of branches, and arithmetic with constants."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lipgraft.network.graph import Add
from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_method

Operand = Ref | Tensor | float


@lowers_function(operator.add, torch.add)
@lowers_method("add")
@lowers_function(operator.iadd, in_place=True)
@lowers_method("add_", in_place=True)
def add(build: Builder, input: Operand, other: Operand, *, alpha: float = 1) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        if input.shape != other.shape:
            raise build.unsupported(f"it adds different shapes, {input.shape} and {other.shape}")
        return build.add(Add, input, _times(build, other, alpha))
    if isinstance(input, Ref):
        return _shift(build, input, _multiple(other, alpha))
    assert isinstance(other, Ref)
    return _shift(build, _times(build, other, alpha), input)


@lowers_function(operator.sub, torch.sub, torch.subtract)
@lowers_method("sub", "subtract")
@lowers_function(operator.isub, in_place=True)
@lowers_method("sub_", in_place=True)
def sub(build: Builder, input: Operand, other: Operand, *, alpha: float = 1) -> Ref:
    return add(build, input, other, alpha=-alpha)


@lowers_function(operator.mul, torch.mul, torch.multiply)
@lowers_method("mul", "multiply")
@lowers_function(operator.imul, in_place=True)
@lowers_method("mul_", in_place=True)
def mul(build: Builder, input: Operand, other: Operand) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        raise build.unsupported("it multiplies two tensors that both depend on the input")
    x, factor = (input, other) if isinstance(input, Ref) else (other, input)
    assert isinstance(x, Ref)
    return build.scale(x, _constant(build, x, factor))


@lowers_function(operator.truediv, torch.div, torch.true_divide)
@lowers_method("div", "true_divide")
@lowers_function(operator.itruediv, in_place=True)
@lowers_method("div_", in_place=True)
def div(build: Builder, input: Operand, other: Operand) -> Ref:
    if isinstance(other, Ref) or not isinstance(input, Ref):
        raise build.unsupported("it divides by a tensor that depends on the input")
    return build.scale(input, 1.0 / _constant(build, input, other))


@lowers_function(operator.neg, torch.neg, torch.negative)
@lowers_method("neg", "negative")
def neg(build: Builder, input: Ref) -> Ref:
    return build.scale(input, -1.0)


def _shift(build: Builder, x: Ref, constant: Any) -> Ref:
    """x + constant; `sum([a, b])` starts with a 0 that needs no node, only memory of its own."""
    if isinstance(constant, (int, float)) and constant == 0:
        return replace(x, memory=object())
    return build.scale(x, 1.0, _constant(build, x, constant))


def _times(build: Builder, x: Ref, alpha: float) -> Ref:
    return x if alpha == 1 else build.scale(x, float(alpha), part="scaled")


def _multiple(constant: Any, alpha: float) -> Any:
    """A parameter that is not multiplied stays itself, so that it stays live."""
    return constant if alpha == 1 else constant * alpha


def _constant(build: Builder, x: Ref, value: Any) -> Tensor:
    """A number or constant tensor that broadcasts to x's shape, without the batch axis."""
    if not isinstance(value, (int, float, Tensor)):
        raise build.unsupported(f"its constant is a {type(value).__name__}")
    constant = build.tensor(x, value)
    if constant.ndim > len(x.shape):
        if constant.ndim > len(x.shape) + 1 or constant.shape[0] != 1:
            raise build.unsupported(f"its constant of shape {tuple(constant.shape)} reaches over the batch axis")
        with torch.enable_grad():  # a view: still live, also for gradients
            constant = constant[0]
    sizes = zip(reversed(constant.shape), reversed(x.shape), strict=False)
    if any(c not in (1, n) for c, n in sizes):
        raise build.unsupported(f"its constant has shape {tuple(constant.shape)}, its input {x.shape}")
    return constant
