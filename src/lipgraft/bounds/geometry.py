"""Where the coefficients of a row live.

A row is a linear function of some node's values. A neuron of a convolution sees only a window of an earlier layer, so
its row needs coefficients on that window alone. The window of the target neuron at grid place p starts at
p * stride + offset and has a fixed size: that is a `Window`. `None` stands for all of the layer.

Windows may reach over the layer's edge (zero padding); coefficients there must never count. A window is `clean` when
they are known to be zero or absent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lipgraft.network.graph import Activation, Add, Conv, Input, Linear, Network, Node, Pad, Reshape, Scale, Shape

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """size: (rows, columns); origin of the window of place p: p * stride + offset."""

    size: Pair
    stride: Pair
    offset: Pair

    def area(self) -> int:
        return self.size[0] * self.size[1]

    def through_conv(self, conv: Conv) -> Window:
        """The window on the convolution's input that this window on its output reads."""
        k = conv.weight.shape[2:]
        size = [
            (n - 1) * s + d * (m - 1) + 1 for n, s, d, m in zip(self.size, conv.stride, conv.dilation, k, strict=True)
        ]
        stride = [a * s for a, s in zip(self.stride, conv.stride, strict=True)]
        offset = [a * s - p for a, s, p in zip(self.offset, conv.stride, conv.padding, strict=True)]
        return Window((size[0], size[1]), (stride[0], stride[1]), (offset[0], offset[1]))

    def through_pad(self, pad: Pad) -> Window:
        left, _, top, _ = pad.pads
        return Window(self.size, self.stride, (self.offset[0] - top, self.offset[1] - left))

    def union(self, other: Window) -> Window | None:
        """The smallest window that holds both, or None when they move at different speeds."""
        if self.stride != other.stride:
            return None
        low = [min(a, b) for a, b in zip(self.offset, other.offset, strict=True)]
        high = [max(a + n, b + m) for a, n, b, m in zip(self.offset, self.size, other.offset, other.size, strict=True)]
        return Window((high[0] - low[0], high[1] - low[1]), self.stride, (low[0], low[1]))


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
    windows: dict[int, Window | None] = {target: Window((1, 1), (1, 1), (0, 0)) if image else None}
    for i in range(target, root, -1):
        if i in windows:
            _spread(network, i, windows)
    sizes = {i: row_numel(network.nodes[i].shape, w) for i, w in windows.items()}
    floats = max(
        (sizes[i] + max((sizes[j] for j in network.nodes[i].inputs), default=0) for i in sizes if i > root), default=1
    )
    return Plan(target, root, (node.shape[1], node.shape[2]) if image else (1, 1), windows, floats)


def _spread(network: Network, i: int, windows: dict[int, Window | None]) -> None:
    """Carry the window at node i over to the nodes it reads."""
    node, window = network.nodes[i], windows[i]
    if isinstance(node, Reshape):
        windows[i] = window = None
    for j in node.inputs:
        incoming = _through(node, window)
        if j in windows:
            present = windows[j]
            incoming = None if present is None or incoming is None else present.union(incoming)
        shape = network.nodes[j].shape
        if incoming is not None and incoming.area() >= math.prod(shape[1:]):
            incoming = None
        windows[j] = incoming


def _through(node: Node, window: Window | None) -> Window | None:
    match node:
        case Conv() if window is not None:
            return window.through_conv(node)
        case Pad() if window is not None:
            return window.through_pad(node)
        case Scale() | Add() | Activation():
            return window
        case Conv() | Pad() | Linear() | Reshape():
            return None
    raise AssertionError(f"no window rule for {type(node).__name__}")


def row_numel(shape: Shape, window: Window | None) -> int:
    return math.prod(shape) if window is None else shape[0] * window.area()


def input_like(network: Network) -> int:
    """The last node that is still a box: reached from the input through element-wise affine nodes alone.

    Rows may stop there, since the interval of such a node is exact and its elements are independent. It must be the
    only way from the input, or two branches would lose their common origin.
    """
    consumers, i = network.consumers(), 0
    while (
        i != network.output
        and len(consumers[i]) == 1
        and isinstance(network.nodes[consumers[i][0]], Scale | Pad | Reshape)
    ):
        i = consumers[i][0]
    return i


def interval_is_exact(network: Network) -> list[bool]:
    """For each node, whether interval arithmetic gives its exact range: at most one mixing node after the box."""
    exact = [False] * len(network.nodes)
    diagonal = [False] * len(network.nodes)
    for i, node in enumerate(network.nodes):
        match node:
            case Input():
                exact[i] = diagonal[i] = True
            case Scale() | Pad() | Reshape():
                exact[i], diagonal[i] = exact[node.inputs[0]], diagonal[node.inputs[0]]
            case Conv() | Linear():
                exact[i] = diagonal[node.inputs[0]]
            case _:
                pass
    return exact
