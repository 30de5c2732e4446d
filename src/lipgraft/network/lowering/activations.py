"""Element-wise activations, as modules, functions and methods."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_method, lowers_module

_KINDS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky-relu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
}


def activation_kind(module: nn.Module) -> tuple[str, float]:
    """(kind, negative slope) of an activation module; the slope is 0 for all but leaky ReLU."""
    kind = _KINDS.get(type(module))
    if kind is None:
        known = ", ".join(t.__name__ for t in _KINDS)
        raise UnsupportedOperationError(f"{type(module).__name__} is not a known activation. Known: {known}.")
    return kind, float(module.negative_slope) if isinstance(module, nn.LeakyReLU) else 0.0


@lowers_module(*_KINDS, activation=True)
def activation_module(build: Builder, module: nn.Module, input: Ref) -> Ref:
    return build.activation(input, *activation_kind(module))


@lowers_function(torch.relu, F.relu, activation=True)
@lowers_method("relu", activation=True)
@lowers_function(torch.relu_, activation=True, in_place=True)
@lowers_method("relu_", activation=True, in_place=True)
def relu(build: Builder, input: Ref, inplace: bool = False) -> Ref:
    return build.activation(input, "relu")


@lowers_function(F.leaky_relu, activation=True)
@lowers_function(F.leaky_relu_, activation=True, in_place=True)
def leaky_relu(build: Builder, input: Ref, negative_slope: float = 0.01, inplace: bool = False) -> Ref:
    return build.activation(input, "leaky-relu", float(negative_slope))


@lowers_function(torch.sigmoid, F.sigmoid, activation=True)
@lowers_method("sigmoid", activation=True)
@lowers_function(torch.sigmoid_, activation=True, in_place=True)
@lowers_method("sigmoid_", activation=True, in_place=True)
def sigmoid(build: Builder, input: Ref) -> Ref:
    return build.activation(input, "sigmoid")


@lowers_function(torch.tanh, F.tanh, activation=True)
@lowers_method("tanh", activation=True)
@lowers_function(torch.tanh_, activation=True, in_place=True)
@lowers_method("tanh_", activation=True, in_place=True)
def tanh(build: Builder, input: Ref) -> Ref:
    return build.activation(input, "tanh")
