"""Changes of shape and order, and questions about shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.network.graph import Add
from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_method, lowers_module


def _moved_by(build: Builder, x: Ref, function: Callable[[Tensor], Any]) -> Any:
    """What the function makes of x, once a numbered tensor has shown where it puts every number."""
    size = x.example[0].numel()
    probe = torch.arange(x.example.numel(), device=x.example.device).reshape(x.example.shape)
    try:
        result = function(probe)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise build.unsupported(f"it does not fit an input of shape {x.shape} ({error})") from error
    parts = result if isinstance(result, tuple) else (result,)
    moved = [_moved(build, x, part, probe, size) for part in parts]
    return tuple(moved) if isinstance(result, tuple) else moved[0]


def _moved(build: Builder, x: Ref, result: Tensor, probe: Tensor, size: int) -> Ref:
    owner = torch.arange(len(probe), device=probe.device)[:, None]
    rows = result.reshape(len(probe), -1) if result.ndim > 0 and len(result) == len(probe) else None
    if rows is None or rows.shape[1] == 0 or bool((rows // size != owner).any()):
        raise build.unsupported("it must keep the batch axis, and at least one number of each input")
    picked = build.pick(x, rows[0].cpu(), tuple(result.shape[1:]))
    # What copies a contiguous tensor always copies; what does not may copy another one.
    copied = result.untyped_storage().data_ptr() != probe.untyped_storage().data_ptr()
    return replace(picked, memory=object() if copied else x.memory)


def _moving(name: str) -> Callable[..., Any]:
    def handler(build: Builder, input: Ref, *args: Any, **kwargs: Any) -> Any:
        return _moved_by(build, input, lambda t: getattr(t, name)(*args, **kwargs))

    return handler


_BOTH = ("chunk", "flatten", "flip", "index_select", "movedim", "narrow", "permute", "reshape", "roll", "select",
         "split", "squeeze", "swapaxes", "swapdims", "transpose", "unbind", "unflatten", "unsqueeze")  # fmt: skip
for _name in _BOTH:
    lowers_function(getattr(torch, _name))(lowers_method(_name)(_moving(_name)))
for _name in ("expand", "repeat", "view"):
    lowers_method(_name)(_moving(_name))


@lowers_module(nn.Flatten, nn.Unflatten)
def flatten_module(build: Builder, module: nn.Flatten | nn.Unflatten, input: Ref) -> Any:
    return _moved_by(build, input, module)


@lowers_function(operator.getitem)
def getitem(build: Builder, input: Ref | Sequence[Ref], index: Any) -> Any:
    """x[:, None], x[..., 0], x[:, 2:5]; or one of the parts of `split`, `chunk` and `unbind`."""
    return _moved_by(build, input, lambda t: t[index]) if isinstance(input, Ref) else input[index]


@lowers_function(torch.cat, torch.concat, torch.concatenate)
def cat(build: Builder, tensors: Sequence[Any], dim: int = 0) -> Ref:
    """The sum of the parts, each in its place between zeros."""
    if isinstance(tensors, Ref) or not all(isinstance(part, Ref) for part in tensors):
        raise build.unsupported("it joins results with constants, or images with each other; pad and add instead")
    sizes = [part.example[0].numel() for part in tensors]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    places = [torch.arange(n).reshape(1, *part.shape) + k for n, k, part in zip(sizes, starts, tensors, strict=True)]
    try:
        joined = torch.cat(places, dim)
    except (RuntimeError, IndexError) as error:
        raise build.unsupported(f"its parts do not fit together ({error})") from error
    if len(joined) != 1:
        raise build.unsupported("it joins along the batch axis")
    total: Ref | None = None
    for number, (part, start, size) in enumerate(zip(tensors, starts, sizes, strict=True), 1):
        own = torch.where((joined >= start) & (joined < start + size), joined - start, -1)
        placed = build.pick(part, own.flatten(), tuple(joined.shape[1:]), part="part")
        name = "" if number == len(tensors) else "sum"
        total = placed if total is None else build.add(Add, total, placed, part=name)
    assert total is not None
    return replace(total, memory=object())


@lowers_method("detach")
def detach(build: Builder, input: Ref) -> Ref:
    return input


@lowers_method("contiguous")
def contiguous(build: Builder, input: Ref) -> Ref:
    """The same tensor or a copy, which depends on its strides."""
    return replace(input)


@lowers_function(torch.clone)
@lowers_method("clone")
def clone(build: Builder, input: Ref) -> Ref:
    return replace(input, memory=object())


def _conversion(name: str) -> Callable[..., Ref]:
    def handler(build: Builder, input: Ref, *args: Any, **kwargs: Any) -> Ref:
        example = input.example.to(build.model_dtype)
        result = getattr(example, name)(*args, **kwargs)
        if result.dtype != example.dtype or result.device != example.device:
            raise build.unsupported(f"it changes dtype or device; convert the whole model with .to({result.dtype})")
        if kwargs.get("memory_format") is not None:
            return replace(input)  # the same tensor or a copy, which depends on its strides
        return input if result is example else replace(input, memory=object())

    return handler


for _name in ("float", "double", "to"):
    lowers_method(_name)(_conversion(_name))


@lowers_function(getattr)
def attribute(build: Builder, input: Ref, name: str) -> Any:
    if name not in ("shape", "ndim", "dtype", "device"):
        raise build.unsupported(f"the attribute {name!r} of a tensor")
    return build.model_dtype if name == "dtype" else getattr(input.example, name)


def _question(name: str) -> Callable[..., Any]:
    def handler(build: Builder, input: Ref, *args: Any, **kwargs: Any) -> Any:
        return getattr(input.example, name)(*args, **kwargs)

    return handler


for _name in ("size", "dim", "ndimension", "numel"):
    lowers_method(_name)(_question(_name))
