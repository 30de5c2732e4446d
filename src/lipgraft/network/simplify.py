"""Making the graph smaller without changing the function it computes."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

import torch

from lipgraft.network.graph import Affine, Input, Network, Node, Reshape, Scale


def simplify(network: Network, foldable: AbstractSet[int] = frozenset()) -> Network:
    """Fold the Scale nodes at the foldable positions into the affine node before them, join Scales, drop dead nodes.

    A node is only folded when nothing else reads the node before it. Folded tensors are detached snapshots.
    """
    nodes = list(network.nodes)
    consumers = network.consumers()
    for i, node in enumerate(nodes):
        if not isinstance(node, Scale):
            continue
        (j,) = node.inputs
        before = nodes[j]
        if len(consumers[j]) > 1 or j == network.output:
            continue
        folded = _fold(before, node) if isinstance(before, Affine) and i in foldable else None
        if folded is not None:
            nodes[i] = folded
        elif isinstance(before, Scale) and not _needs_grad(before) and not _needs_grad(node):
            joined = before.shift * node.scale + node.shift
            nodes[i] = replace(node, inputs=before.inputs, scale=before.scale * node.scale, shift=joined)
    smaller = without_dead(Network(tuple(nodes), network.output))
    if smaller.output == 0:  # the network is the identity; who reads graphs expects a node behind the input
        smaller = Network((*smaller.nodes, Reshape("identity", (0,), smaller.input_shape)), 1)
    return smaller


@torch.no_grad()
def _fold(before: Affine, after: Scale) -> Node | None:
    """Both as one node, with one scale and shift per output channel; None when that is not possible."""
    channels = before.shape[0]
    return before.scaled(after.scale.reshape(channels), after.shift.reshape(channels))


def _needs_grad(node: Scale) -> bool:
    return node.scale.requires_grad or node.shift.requires_grad


def without_dead(network: Network) -> Network:
    """Keep the input and what the output depends on."""
    live = {0, network.output}
    for i in reversed(range(len(network.nodes))):
        if i in live:
            live.update(network.nodes[i].inputs)
    position = {old: new for new, old in enumerate(sorted(live))}
    nodes = []
    for old in sorted(live):
        node = network.nodes[old]
        inputs = tuple(position[j] for j in node.inputs)
        nodes.append(node if isinstance(node, Input) else replace(node, inputs=inputs))
    return Network(tuple(nodes), position[network.output])
