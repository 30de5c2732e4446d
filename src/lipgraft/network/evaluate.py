"""Running the graph on concrete inputs."""

from __future__ import annotations

from torch import Tensor

from lipgraft.network.graph import Network


def evaluate(network: Network, x: Tensor) -> list[Tensor]:
    """The value of every node, in the order of the nodes. x: (B, *input_shape); value i: (B, *nodes[i].shape)."""
    values: list[Tensor] = []
    for node in network.nodes:
        values.append(node.forward(*(values[j] for j in node.inputs)) if node.inputs else x)
    return values
