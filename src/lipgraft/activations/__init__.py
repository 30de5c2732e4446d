"""Activations: everything that lipgraft knows about a kind is in the kind's own file. To add one, add a row below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from lipgraft.activations.curve import Curve, Interval
from lipgraft.activations.gelu import GELU
from lipgraft.activations.hardtanh import Hardtanh, ReLU6
from lipgraft.activations.leaky_relu import LeakyReLU
from lipgraft.activations.lines import Lines
from lipgraft.activations.relu import ReLU
from lipgraft.activations.sigmoid import Sigmoid
from lipgraft.activations.silu import SiLU
from lipgraft.activations.softplus import Softplus
from lipgraft.activations.tanh import Tanh
from lipgraft.errors import UnsupportedOperationError

KINDS: tuple[type[Curve], ...] = (
    ReLU,
    LeakyReLU,
    Sigmoid,
    Tanh,
    GELU,
    SiLU,
    Softplus,
    Hardtanh,
    ReLU6,
)

MODULES: dict[type[nn.Module], type[Curve]] = {module: kind for kind in KINDS for module in kind.modules}
FUNCTIONS: dict[Callable[..., Any], type[Curve]] = {function: kind for kind in KINDS for function in kind.functions}
METHODS: dict[str, type[Curve]] = {method: kind for kind in KINDS for method in kind.methods}
ONNX: dict[str, type[Curve]] = {operator: kind for kind in KINDS for operator in kind.onnx}


def curve_of(module: nn.Module) -> Curve:
    """The curve that an activation module computes."""
    kind = MODULES.get(type(module))
    if kind is None:
        known = ", ".join(t.__name__ for t in MODULES)
        raise UnsupportedOperationError(f"{type(module).__name__} is not a known activation. Known: {known}.")
    return kind.of_module(module)


__all__ = [
    "FUNCTIONS",
    "KINDS",
    "METHODS",
    "MODULES",
    "ONNX",
    "Curve",
    "Interval",
    "LeakyReLU",
    "Lines",
    "ReLU",
    "Sigmoid",
    "Tanh",
    "curve_of",
]
