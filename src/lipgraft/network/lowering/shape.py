"""Changes of shape that keep the order of the numbers, and questions about shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_method, lowers_module


def _reshape_by(build: Builder, x: Ref, function: Callable[[Tensor], Any]) -> Ref:
    """Reshape x as the function does, once a numbered tensor has shown that it keeps every number in its place."""
    probe = torch.arange(x.example.numel()).reshape(x.example.shape)
    try:
        result = function(probe)
    except (RuntimeError, IndexError, ValueError) as error:
        raise build.unsupported(f"it does not fit an input of shape {x.shape} ({error})") from error
    if result.ndim < 1 or len(result) != len(probe) or not torch.equal(result.reshape(-1), probe.reshape(-1)):
        raise build.unsupported("a change of shape must keep the batch axis and the order of the numbers")
    return build.reshape(x, tuple(result.shape[1:]))


def _reshaping(name: str) -> Callable[..., Ref]:
    def handler(build: Builder, input: Ref, *args: Any, **kwargs: Any) -> Ref:
        return _reshape_by(build, input, lambda t: getattr(t, name)(*args, **kwargs))

    return handler


for _name in ("flatten", "reshape", "squeeze", "unsqueeze", "unflatten"):
    lowers_function(getattr(torch, _name))(lowers_method(_name)(_reshaping(_name)))
lowers_method("view")(_reshaping("view"))


@lowers_module(nn.Flatten, nn.Unflatten)
def flatten_module(build: Builder, module: nn.Flatten | nn.Unflatten, input: Ref) -> Ref:
    return _reshape_by(build, input, module)


@lowers_function(operator.getitem)
def getitem(build: Builder, input: Ref, index: Any) -> Ref:
    """x[:, None], x[..., 0] of an axis of size 1: indexing that only changes the shape."""
    return _reshape_by(build, input, lambda t: t[index])


@lowers_method("contiguous", "detach")
def contiguous(build: Builder, input: Ref) -> Ref:
    return input


@lowers_function(torch.clone)
@lowers_method("clone")
def clone(build: Builder, input: Ref) -> Ref:
    return replace(input, memory=object())


def _conversion(name: str) -> Callable[..., Ref]:
    def handler(build: Builder, input: Ref, *args: Any, **kwargs: Any) -> Ref:
        result = getattr(input.example, name)(*args, **kwargs)
        if result.dtype != input.example.dtype or result.device != input.example.device:
            raise build.unsupported(f"it changes dtype or device; convert the whole model with .to({result.dtype})")
        return input

    return handler


for _name in ("float", "double", "to"):
    lowers_method(_name)(_conversion(_name))


@lowers_function(getattr)
def attribute(build: Builder, input: Ref, name: str) -> Any:
    if name not in ("shape", "ndim", "dtype", "device"):
        raise build.unsupported(f"the attribute {name!r} of a tensor")
    return getattr(input.example, name)


def _question(name: str) -> Callable[..., Any]:
    def handler(build: Builder, input: Ref, *args: Any, **kwargs: Any) -> Any:
        return getattr(input.example, name)(*args, **kwargs)

    return handler


for _name in ("size", "dim", "ndimension", "numel"):
    lowers_method(_name)(_question(_name))
