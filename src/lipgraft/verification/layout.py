"""All neurons that matter to one target, side by side on one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lipgraft.bounds.geometry import Plan, input_like
from lipgraft.network.graph import Activation, Input, Network


@dataclass(frozen=True, eq=False)
class Layout:
    """places[i]: where the neurons of activation i stand on the flat axis of `size` neurons.

    Flat tensors that are written to by neuron have one more column, `size`, which stands for "no neuron".
    """

    network: Network
    path: Plan
    places: dict[int, slice]
    size: int

    @staticmethod
    def of(network: Network, target: int) -> Layout:
        """The activations between the input and node `target`."""
        path = dense_plan(network, target)
        places: dict[int, slice] = {}
        size = 0
        for i, node in network.activations():
            if i in path.windows and i > path.root:
                places[i] = slice(size, size + math.prod(node.shape))
                size = places[i].stop
        return Layout(network, path, places, size)

    def activation(self, i: int) -> Activation:
        node = self.network.nodes[i]
        assert isinstance(node, Activation)
        return node

    def flat(self, values: Mapping[int, Tensor]) -> Tensor:
        """{activation: (B, ..., *shape)} -> (B, size); the axes between are of length 1."""
        parts = [values[i].reshape(len(values[i]), -1) for i in self.places]
        return torch.cat(parts, 1)

    def pieces(self, flat: Tensor) -> dict[int, Tensor]:
        """(B, size or more) -> {activation: (B, 1, 1, *shape)}."""
        # One split, whose gradient is one copy; that of a slice would be as large as `flat`.
        sizes = [place.stop - place.start for place in self.places.values()]
        parts = flat.split_with_sizes([*sizes, flat.shape[1] - self.size], 1)
        return {
            i: part.reshape(len(flat), 1, 1, *self.network.nodes[i].shape)
            for i, part in zip(self.places, parts[:-1], strict=True)
        }

    @cached_property
    def negative_slope(self) -> Tensor:
        """(size + 1,): the slope of each activation left of zero."""
        out = self._like().new_zeros(self.size + 1)
        for i, place in self.places.items():
            out[place] = left_slope(self.activation(i))
        return out

    @cached_property
    def bias(self) -> Tensor:
        """(size + 1,): each pre-activation's value when all activations and the input are zero."""
        zero = self._like()
        values: list[Tensor] = []
        for node in self.network.nodes:
            if isinstance(node, Input | Activation):
                values.append(zero.new_zeros(1, *node.shape))
            else:
                values.append(node.forward(*(values[j] for j in node.inputs)))
        out = zero.new_zeros(self.size + 1)
        for i, place in self.places.items():
            out[place] = values[self.network.nodes[i].inputs[0]].flatten()
        return out

    def _like(self) -> Tensor:
        """Some floating-point tensor of the network: its device and dtype are those of all work."""
        tensors = (t for node in self.network.nodes for t in vars(node).values() if isinstance(t, Tensor))
        return next((t for t in tensors if t.is_floating_point()), torch.zeros(()))


def dense_plan(network: Network, target: int) -> Plan:
    """Rows on whole layers from `target` back to the root: each problem has lines of its own, which windows cannot."""
    root = input_like(network)
    reached = {target}
    for i in range(target, root, -1):
        if i in reached:
            reached.update(network.nodes[i].inputs)
    floats = max(math.prod(network.nodes[i].shape) for i in reached)
    return Plan(target, root, (1, 1), dict.fromkeys(sorted(reached)), floats)


def left_slope(node: Activation) -> float:
    """The slope left of zero; a smooth curve has none, and stands here only when it is grafted throughout."""
    return node.curve.slopes[0] if node.curve.splits_at_zero else 0.0


def piecewise_linear(network: Network) -> bool:
    """Whether every activation that is not wholly grafted can be split at zero into two lines."""
    return all(
        node.curve.splits_at_zero or (node.graft is not None and bool(node.graft.mask.all()))
        for _, node in network.activations()
    )
