"""The one representation of a network: a graph of affine nodes, element-wise activations and, rarely, products.

Nodes stand in topological order and name their inputs by position. Shapes never include the batch axis. Tensors are
live references to the module's parameters, so that interval bounds can be differentiated through them and a graph
traced once keeps following an optimiser; tensors derived from buffers (folded BatchNorm) are snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lipgraft.network.nodes import (
    Activation,
    Add,
    Affine,
    Conv,
    Graft,
    Input,
    Linear,
    Node,
    Pad,
    Pick,
    Planar,
    Reshape,
    Scale,
    Shape,
)
from lipgraft.network.precision import ordinary

__all__ = [
    "Activation",
    "Add",
    "Affine",
    "Conv",
    "Graft",
    "Input",
    "Linear",
    "Network",
    "Node",
    "Pad",
    "Pick",
    "Planar",
    "Reshape",
    "Scale",
    "Shape",
]


@dataclass(frozen=True, eq=False)
class Network:
    """nodes[0] is the input, nodes[output] the output (a vector)."""

    nodes: tuple[Node, ...]
    output: int
    names: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", {n.name: i for i, n in enumerate(self.nodes)})

    @property
    def input_shape(self) -> Shape:
        return self.nodes[0].shape

    @property
    def output_shape(self) -> Shape:
        return self.nodes[self.output].shape

    def activations(self) -> Iterator[tuple[int, Activation]]:
        """The activations with their positions, in topological order."""
        return ((i, n) for i, n in enumerate(self.nodes) if isinstance(n, Activation))

    def consumers(self) -> list[list[int]]:
        """For each node, the positions of the nodes that read it (twice if twice)."""
        out: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for j in node.inputs:
                out[j].append(i)
        return out

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Network:
        """The same graph with detached tensors of another dtype or on another device (masks stay boolean)."""

        def move(t: Tensor) -> Tensor:
            return ordinary(t.detach().to(device=device, dtype=dtype if t.is_floating_point() else None))

        def moved(node: Node) -> Node:
            changes: dict[str, object] = {}
            for key, value in vars(node).items():
                if isinstance(value, Tensor):
                    changes[key] = move(value)
                elif isinstance(value, Graft):
                    changes[key] = Graft(move(value.mask), move(value.gamma), move(value.omega))
            return replace(node, **changes)  # type: ignore[arg-type]

        return Network(tuple(moved(n) for n in self.nodes), self.output)
