"""The affine part of a network between one activation and the activations (or the output) it feeds."""

from __future__ import annotations

from dataclasses import dataclass

from lipgraft.network.graph import Activation, Network
from lipgraft.network.nodes.node import Weighted


@dataclass(frozen=True)
class Region:
    """What an activation's output reaches without passing another activation.

    source: position of the activation; nodes: positions of source and of the affine nodes reached, in order;
    sinks: positions of the next activations; output: whether the network's output is reached;
    simple: every sink is reached by one path holding at most one node with weights, so that the weight from source
    neuron j to sink neuron k is a single product along that path.
    """

    source: int
    nodes: tuple[int, ...]
    sinks: tuple[int, ...]
    output: bool
    simple: bool


def region(network: Network, source: int) -> Region:
    """The region behind the activation at position `source`."""
    paths, dense = {source: 1}, {source: 0}
    sinks: list[int] = []
    for i in range(source + 1, len(network.nodes)):
        node = network.nodes[i]
        inputs = [j for j in node.inputs if j in paths]
        if not inputs:
            continue
        if isinstance(node, Activation):
            sinks.append(i)
        else:
            paths[i] = sum(paths[j] for j in inputs)
            dense[i] = max(dense[j] for j in inputs) + isinstance(node, Weighted)
    output = network.output in paths
    ends = {network.nodes[i].inputs[0] for i in sinks} | ({network.output} if output else set())
    simple = all(paths[i] == 1 and dense[i] <= 1 for i in ends)
    return Region(source, tuple(paths), tuple(sinks), output, simple)


def last_layers(network: Network) -> list[str]:
    """Names of the last hidden layers: the activations that feed no other activation. Almost always one."""
    return [node.name for i, node in network.activations() if not region(network, i).sinks]
