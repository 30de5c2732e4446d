"""Element-wise activations, as modules, functions and methods: all that `lipgraft.activations` knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from lipgraft.activations import FUNCTIONS, METHODS, MODULES, Curve, curve_of
from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_method, lowers_module


@lowers_module(*MODULES, activation=True)
def activation_module(build: Builder, module: nn.Module, input: Ref) -> Ref:
    return _activation(build, input, lambda: curve_of(module))


def _called(kind: type[Curve]) -> Callable[..., Ref]:
    """The handler of calls of this kind; its signature has the arguments that the kind names."""

    def handler(build: Builder, input: Ref, *args: Any, **kwargs: Any) -> Ref:
        return _activation(build, input, lambda: kind.called(*args, **kwargs))

    own = list(inspect.signature(handler).parameters.values())[:2]
    handler.__signature__ = inspect.Signature([*own, *inspect.signature(kind.called).parameters.values()])  # type: ignore[attr-defined]
    return handler


def _activation(build: Builder, input: Ref, curve: Callable[[], Curve]) -> Ref:
    try:
        return build.activation(input, curve())
    except ValueError as error:
        raise build.unsupported(str(error)) from error


def in_place(name: str) -> bool:
    """PyTorch's sign for functions and methods that overwrite their input."""
    return name.endswith("_")


for _function, _kind in FUNCTIONS.items():
    lowers_function(_function, activation=True, in_place=in_place(_function.__name__))(_called(_kind))
for _method, _kind in METHODS.items():
    lowers_method(_method, activation=True, in_place=in_place(_method))(_called(_kind))
