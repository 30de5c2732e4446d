"""The weight factor of s_wi: how strongly a neuron is wired to the selected neurons of the next layer(s)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.errors import SettingsError, UnsupportedOperationError, unknown_name
from lipgraft.graft.scores.push import CHUNK, max_push, sum_push
from lipgraft.graft.scores.region import Region, region
from lipgraft.network.graph import Add, Conv, Linear, Network, Node, Pad, Reshape, Scale

Merge = Callable[[Tensor, Tensor], Tensor]
OVER = ("max", "mean")


@torch.no_grad()
def weight_factor(
    network: Network, name: str, selected: Mapping[str, Tensor] | None = None, *, over: str = "max"
) -> Tensor:
    """max_k |w_jk| over the selected neurons k of the layers that activation `name` feeds; of the activation's shape.

    w is the affine map from the activation's output to the next pre-activations, everything in between composed:
    convolutions (any stride, padding, dilation, groups), flattening, padding, scaling and residual joins. A residual
    block's input feeds the block's first activation and, over the shortcut, the activation after the join.

    selected: {activation name: boolean mask}; layers that are not named count as wholly selected, and so does the
    network's output, which is what the last hidden layer feeds. over="mean" averages |w_jk| over the selected k.
    """
    if over not in OVER:
        raise SettingsError(unknown_name("over", over, list(OVER)))
    reach = region(network, network.names[name])
    sinks = _sinks(network, reach, selected or {})
    if not sinks:  # an activation whose value nobody reads
        return _like(network).new_zeros(network.nodes[reach.source].shape)
    merge: Merge = torch.maximum if over == "max" else torch.add
    worth = _pushed(network, reach, sinks, merge) if reach.simple else _composed(network, reach, sinks, merge)
    if over == "max":
        return worth
    return worth / torch.stack([mask.sum() for _, mask in sinks]).sum().clamp(min=1)


def _sinks(network: Network, reach: Region, selected: Mapping[str, Tensor]) -> list[tuple[int, Tensor]]:
    """(position of the pre-activation, its mask as 0.0 and 1.0) for each sink."""
    like = _like(network)
    sinks = []
    for i in reach.sinks:
        node = network.nodes[i]
        mask = selected.get(node.name)
        sinks.append((node.inputs[0], like.new_ones(node.shape) if mask is None else mask.to(like)))
    if reach.output:
        sinks.append((network.output, like.new_ones(network.output_shape)))
    return sinks


def _pushed(network: Network, reach: Region, sinks: list[tuple[int, Tensor]], merge: Merge) -> Tensor:
    """One sweep back from all sinks at once; exact because each (j, k) is joined by a single product of weights."""
    push = max_push if merge is torch.maximum else sum_push
    worth: dict[int, Tensor] = {}

    def add(i: int, v: Tensor) -> None:
        worth[i] = merge(worth[i], v) if i in worth else v

    inside = set(reach.nodes)
    for i, mask in sinks:
        add(i, mask)
    for i in reversed(reach.nodes[1:]):
        if i in worth:
            node, v = network.nodes[i], worth.pop(i)
            for j in node.inputs:
                if j in inside:
                    add(j, push(node, v, network.nodes[j].shape))
    return worth[reach.source]


def _composed(network: Network, reach: Region, sinks: list[tuple[int, Tensor]], merge: Merge) -> Tensor:
    """Rows of the composed matrix, by sending unit vectors forward in chunks: any affine region, at a higher price."""
    shape = network.nodes[reach.source].shape
    size, inside = prod(shape), set(reach.nodes)
    step = max(1, CHUNK // max(prod(network.nodes[i].shape) for i in reach.nodes))
    like = _like(network)
    worth = []
    for first in range(0, size, step):
        rows = torch.arange(first, min(first + step, size), device=like.device)
        values = {reach.source: F.one_hot(rows, size).to(like).reshape(-1, *shape)}
        for i in reach.nodes[1:]:
            node = network.nodes[i]
            values[i] = _linear_part(node, [values[j] for j in node.inputs if j in inside])
        best = like.new_zeros(len(rows))
        for i, mask in sinks:
            weights = (values[i].abs() * mask).flatten(1)
            best = merge(best, weights.amax(1) if merge is torch.maximum else weights.sum(1))
        worth.append(best)
    return torch.cat(worth).reshape(shape)


def _linear_part(node: Node, x: list[Tensor]) -> Tensor:
    """The node without its constant. x: its inputs that lie in the region, (b, *shape) each."""
    if isinstance(node, Conv):
        return F.conv2d(x[0], node.weight, None, node.stride, node.padding, node.dilation, node.groups)
    if isinstance(node, Linear):
        return x[0] @ node.weight.T
    if isinstance(node, Scale):
        return x[0] * node.scale
    if isinstance(node, Pad):
        return F.pad(x[0], node.pads)
    if isinstance(node, Reshape):
        return x[0].reshape(-1, *node.shape)
    if isinstance(node, Add):
        return x[0] + x[1] if len(x) == 2 else x[0]
    raise UnsupportedOperationError(f"no weights are known through {node.name} ({type(node).__name__}).")


def _like(network: Network) -> Tensor:
    """Some weight of the network, for its dtype and device."""
    for node in network.nodes:
        if isinstance(node, Conv | Linear):
            return node.weight
    return torch.empty(0)
