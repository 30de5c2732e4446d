"""Running the graph on concrete inputs: the meaning of every node, in one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.errors import UnsupportedOperationError, unknown_name
from lipgraft.network.graph import Activation, Add, Conv, Input, Linear, Network, Node, Pad, Reshape, Scale

# kind -> function of (z, negative_slope)
ACTIVATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "relu": lambda z, _: torch.relu(z),
    "leaky-relu": F.leaky_relu,
    "sigmoid": lambda z, _: torch.sigmoid(z),
    "tanh": lambda z, _: torch.tanh(z),
}


def evaluate(network: Network, x: Tensor) -> list[Tensor]:
    """The value of every node, in the order of the nodes. x: (B, *input_shape); value i: (B, *nodes[i].shape)."""
    values: list[Tensor] = []
    for node in network.nodes:
        values.append(x if isinstance(node, Input) else evaluate_node(node, *(values[j] for j in node.inputs)))
    return values


def evaluate_node(node: Node, *inputs: Tensor) -> Tensor:
    """The value of one node from the values of its inputs, each (B, *shape). Differentiable."""
    x = inputs[0]
    match node:
        case Conv():
            return F.conv2d(x, node.weight, node.bias, node.stride, node.padding, node.dilation, node.groups)
        case Linear():
            return F.linear(x, node.weight, node.bias)
        case Add():
            return x + inputs[1]
        case Scale():
            return x * node.scale + node.shift
        case Pad():
            return F.pad(x, node.pads)
        case Reshape():
            return x.reshape(len(x), *node.shape)
        case Activation():
            return _activate(node, x)
    raise UnsupportedOperationError(f"node {node.name!r} of type {type(node).__name__} cannot be evaluated.")


def absolute_node(node: Node, *inputs: Tensor, constant: bool = True) -> Tensor:
    """The node with absolute values in place of its numbers: how large inputs up to these can make it, or errors grow.

    inputs: >= 0. constant: with the node's biases. An activation is no steeper than 1, or than its line if grafted.
    """
    x = inputs[0]
    match node:
        case Conv() | Linear():
            bias = node.bias.abs() if constant and node.bias is not None else None
            return evaluate_node(replace(node, weight=node.weight.abs(), bias=bias), x)
        case Scale():
            return x * node.scale.abs() + (node.shift.abs() if constant else 0.0)
        case Activation():
            largest = max(1.0, abs(node.negative_slope)) * x + (0.5 if constant and node.kind == "sigmoid" else 0.0)
            if node.graft is None:
                return largest
            line = node.graft.gamma.abs() * x + (node.graft.omega.abs() if constant else 0.0)
            return torch.where(node.graft.mask, line, largest)
    return evaluate_node(node, *inputs)


def _activate(node: Activation, z: Tensor) -> Tensor:
    """activation(z), or gamma z + omega where the neuron is grafted."""
    if node.kind not in ACTIVATIONS:
        raise UnsupportedOperationError(unknown_name("activation", node.kind, list(ACTIVATIONS)))
    h = ACTIVATIONS[node.kind](z, node.negative_slope)
    if node.graft is None:
        return h
    return torch.where(node.graft.mask, node.graft.gamma * z + node.graft.omega, h)
