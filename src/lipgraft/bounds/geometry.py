"""How rows travel: the window of a row at every node on its way back, or None for all of the layer.

Windows may reach over the layer's edge (zero padding); coefficients there must never count. A window is `clean` when
they are known to be zero or absent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from lipgraft.network.graph import Affine, Input, Network, Shape
from lipgraft.network.window import POINT, Pair, Window


@dataclass(frozen=True)
class Plan:
    """How rows that start at `target` travel back to `root`.

    windows[i]: the window of the rows at node i, None for all of the layer; a node the rows never meet is absent.
    floats: coefficients alive at once for one row, about.
    """

    target: int
    root: int
    grid: Pair
    windows: dict[int, Window | None]
    floats: int


def plan(network: Network, target: int) -> Plan:
    """Single neurons of an image-shaped target start as 1 x 1 windows; everything else is dense."""
    node = network.nodes[target]
    image = len(node.shape) == 3
    root = input_like(network)
    windows: dict[int, Window | None] = {target: POINT if image else None}
    for i in range(target, root, -1):
        if i in windows:
            _spread(network, i, windows)
    sizes = {i: row_numel(network.nodes[i].shape, w) for i, w in windows.items()}
    floats = max(
        (sizes[i] + max((sizes[j] for j in network.nodes[i].inputs), default=0) for i in sizes if i > root), default=1
    )
    return Plan(target, root, (node.shape[1], node.shape[2]) if image else (1, 1), windows, floats)


def dense_plan(network: Network, target: int) -> Plan:
    """Rows on whole layers from `target` back to the root: each problem has lines of its own, which windows cannot."""
    root = input_like(network)
    reached = {target}
    for i in range(target, root, -1):
        if i in reached:
            reached.update(network.nodes[i].inputs)
    floats = max(math.prod(network.nodes[i].shape) for i in reached)
    return Plan(target, root, (1, 1), dict.fromkeys(sorted(reached)), floats)


def _spread(network: Network, i: int, windows: dict[int, Window | None]) -> None:
    """Carry the window at node i over to the nodes it reads. A node without a rule for windows gets whole layers."""
    node, window = network.nodes[i], windows[i]
    before = None if window is None else node.window(window)
    if before is None:
        windows[i] = None
    for j in node.inputs:
        incoming = before
        if j in windows:
            present = windows[j]
            incoming = None if present is None or incoming is None else present.union(incoming)
        shape = network.nodes[j].shape
        if incoming is not None and incoming.area() >= math.prod(shape[1:]):
            incoming = None
        windows[j] = incoming


def row_numel(shape: Shape, window: Window | None) -> int:
    return math.prod(shape) if window is None else shape[0] * window.area()


def input_like(network: Network) -> int:
    """The last node that is still a box: reached from the input through element-wise affine nodes alone.

    Rows may stop there, since the interval of such a node is exact and its elements are independent. It must be the
    only way from the input, or two branches would lose their common origin.
    """
    consumers, i = network.consumers(), 0
    while i != network.output and len(consumers[i]) == 1 and _diagonal(network, consumers[i][0]):
        i = consumers[i][0]
    return i


def at_input(network: Network, root: int, rows: Tensor) -> Tensor:
    """Rows at the input-like root as rows at the input: (..., *root shape) -> (..., *input shape)."""
    for i in range(root, 0, -1):
        node = network.nodes[i]
        assert isinstance(node, Affine)
        rows = node.transpose(rows, network.nodes[node.inputs[0]].shape, {})
    return rows


def interval_is_exact(network: Network) -> list[bool]:
    """For each node, whether interval arithmetic gives its exact range: at most one mixing node after the box."""
    exact = [False] * len(network.nodes)
    diagonal = [False] * len(network.nodes)
    for i, node in enumerate(network.nodes):
        if isinstance(node, Input):
            exact[i] = diagonal[i] = True
        elif isinstance(node, Affine) and len(node.inputs) == 1:
            before = node.inputs[0]
            diagonal[i] = node.diagonal and diagonal[before]
            exact[i] = exact[before] if node.diagonal else diagonal[before]
    return exact


def _diagonal(network: Network, i: int) -> bool:
    node = network.nodes[i]
    return isinstance(node, Affine) and node.diagonal
