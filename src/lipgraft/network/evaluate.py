"""Running the graph on concrete inputs: the meaning of every node, in one line each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.graph import Activation, Add, Conv, Input, Linear, Network, Node, Pad, Reshape, Scale


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


def _activate(node: Activation, z: Tensor) -> Tensor:
    """activation(z), or gamma z + omega where the neuron is grafted."""
    h = node.curve(z)
    if node.graft is None:
        return h
    return torch.where(node.graft.mask, node.graft.gamma * z + node.graft.omega, h)
