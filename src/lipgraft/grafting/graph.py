"""The model's graph as grafting reads it: traced, what an activation feeds, and how strongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.errors import SettingsError, UnsupportedOperationError, unknown_name
from lipgraft.network import known_input_shape, like, subject, trace
from lipgraft.network.graph import Activation, Affine, Network, Node, Shape
from lipgraft.network.nodes import MaxPool
from lipgraft.network.nodes.node import Weighted

Merge = Callable[[Tensor, Tensor], Tensor]

OVER = ("max", "mean")

CHUNK = 2**26  # elements of the largest intermediate tensor


def input_shape_of(model: nn.Module, input_shape: Shape | None = None) -> Shape | None:
    """The shape of one input: as given, else as the model says, else None."""
    if input_shape is None:
        return known_input_shape(model)
    known = getattr(getattr(model, "spec", None), "input_shape", None)
    if known is not None and tuple(known) != tuple(input_shape):
        raise SettingsError(f"the model takes inputs of shape {tuple(known)}, got {tuple(input_shape)}.")
    return tuple(input_shape)


def traced(model: nn.Module | Network, input_shape: Shape | None = None, *, check: bool = True) -> Network:
    """The graph of a model (a Network passes through), which must have an activation to graft. It keeps max pooling.

    check: see `trace`.
    """
    if isinstance(model, Network):
        network = model
        if any(node.auxiliary for _, node in network.activations()):
            raise SettingsError(
                "this graph writes max pooling as ReLUs, which are not neurons that can be grafted; pass "
                "the model itself, or trace it with expand=False."
            )
        if input_shape is not None and network.input_shape != tuple(input_shape):
            raise SettingsError(f"the network takes inputs of shape {network.input_shape}, got {tuple(input_shape)}.")
    else:
        shape = input_shape_of(model, input_shape)
        if shape is None:
            raise SettingsError("the model does not say what it takes; pass input_shape=(C, H, W).")
        network = trace(subject(model), shape, check=check, expand=False)
    if next(network.activations(), None) is None:
        raise UnsupportedOperationError("the network has no activations, so there is nothing to graft.")
    return network


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
        return like(network).new_zeros(network.nodes[reach.source].shape)
    merge: Merge = torch.maximum if over == "max" else torch.add
    worth = _pushed(network, reach, sinks, merge) if reach.simple else _composed(network, reach, sinks, merge)
    if over == "max":
        return worth
    return worth / torch.stack([mask.sum() for _, mask in sinks]).sum().clamp(min=1)


def _sinks(network: Network, reach: Region, selected: Mapping[str, Tensor]) -> list[tuple[int, Tensor]]:
    """(position of the pre-activation, its mask as 0.0 and 1.0) for each sink."""
    number = like(network)
    sinks = []
    for i in reach.sinks:
        node = network.nodes[i]
        mask = selected.get(node.name)
        sinks.append((node.inputs[0], number.new_ones(node.shape) if mask is None else mask.to(number)))
    if reach.output:
        sinks.append((network.output, number.new_ones(network.output_shape)))
    return sinks


def _pushed(network: Network, reach: Region, sinks: list[tuple[int, Tensor]], merge: Merge) -> Tensor:
    """One sweep back from all sinks at once; exact because each (j, k) is joined by a single product of weights."""
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
                    add(j, _back(_affine(node), v, network.nodes[j].shape, merge))
    return worth[reach.source]


def _composed(network: Network, reach: Region, sinks: list[tuple[int, Tensor]], merge: Merge) -> Tensor:
    """Rows of the composed matrix, by sending unit vectors forward in chunks: any affine region, at a higher price."""
    shape = network.nodes[reach.source].shape
    size, inside = prod(shape), set(reach.nodes)
    step = max(1, CHUNK // max(prod(network.nodes[i].shape) for i in reach.nodes))
    number = like(network)
    worth = []
    for first in range(0, size, step):
        rows = torch.arange(first, min(first + step, size), device=number.device)
        values = {reach.source: F.one_hot(rows, size).to(number).reshape(-1, *shape)}
        for i in reach.nodes[1:]:
            node = network.nodes[i]
            values[i] = _affine(node).linear(*(values[j] for j in node.inputs if j in inside))
        best = number.new_zeros(len(rows))
        for i, mask in sinks:
            weights = (values[i].abs() * mask).flatten(1)
            best = merge(best, weights.amax(1) if merge is torch.maximum else weights.sum(1))
        worth.append(best)
    return torch.cat(worth).reshape(shape)


def _back(node: Affine | MaxPool, v: Tensor, shape: Shape, merge: Merge) -> Tensor:
    """At each input j of the node, the maximum or sum of |w_kj| v_k over the outputs k: (*node.shape) -> (*shape)."""
    return node.strongest(v, shape) if merge is torch.maximum else node.magnitude().transpose(v[None], shape, {})[0]


def _affine(node: Node) -> Affine | MaxPool:
    if not isinstance(node, Affine | MaxPool):
        raise UnsupportedOperationError(f"no weights are known through {node.name} ({type(node).__name__}).")
    return node
