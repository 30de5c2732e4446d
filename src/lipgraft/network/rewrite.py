"""Exact rewrites of a graph into affine nodes and ReLUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.activations import ReLU
from lipgraft.network.evaluation import like
from lipgraft.network.graph import Activation, Add, Conv, Graft, Network, Node, Pad, Scale, Shape
from lipgraft.network.lowering.naming import unique
from lipgraft.network.nodes import MaxPool
from lipgraft.network.simplify import without_dead


class Rewriter:
    """The nodes of the new graph, while it grows."""

    def __init__(self, network: Network, other: Tensor | None = None) -> None:
        self.nodes: list[Node] = []
        self.like = like(network, other)
        self._names = set(network.names)

    def add(self, kind: type[Node], name: str, shape: Shape, *inputs: int, **fields: Any) -> int:
        """Append a node of this name, or of one like it when that is taken; returns its position."""
        name = unique(name, self._names)
        self._names.add(name)
        return self.append(kind(name, inputs, shape, **fields))

    def append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def scale(self, name: str, shape: Shape, x: int, scale: float | Tensor, shift: float | Tensor) -> int:
        return self.add(Scale, name, shape, x, scale=self.tensor(scale), shift=self.tensor(shift))

    def tensor(self, value: float | Tensor) -> Tensor:
        return torch.as_tensor(value, dtype=self.like.dtype, device=self.like.device)

    def rename(self, position: int, name: str) -> int:
        self.nodes[position] = replace(self.nodes[position], name=name)
        return position


Rule = Callable[[Rewriter, Node, tuple[int, ...]], int | None]
"""(rewriter, node, new positions of its inputs) -> position of what takes its place, None to keep the node."""


def rewritten(network: Network, rule: Rule, other: Tensor | None = None) -> Network:
    """The network with some nodes replaced; the others keep their names and tensors. other: see `like`."""
    out = Rewriter(network, other)
    position: list[int] = []
    for node in network.nodes:
        inputs = tuple(position[j] for j in node.inputs)
        place = rule(out, node, inputs)
        position.append(out.append(replace(node, inputs=inputs)) if place is None else place)
    return Network(tuple(out.nodes), position[network.output])


def expanded(network: Network, other: Tensor | None = None) -> Network:
    """The network with max pooling written as max(a, b) = a + relu(b - a), first along rows, then along columns.

    The ReLUs are marked as auxiliary: they are bounded, split and counted in Lipschitz constants like any other, but
    they are no neurons of the model, so that they are neither grafted nor counted among its unstable neurons.
    other: of the model's dtype and device, for a network without any number of its own.
    """

    def rule(out: Rewriter, node: Node, inputs: tuple[int, ...]) -> int | None:
        if not isinstance(node, MaxPool):
            return None
        x, shape = inputs[0], out.nodes[inputs[0]].shape
        for axis in (1, 0):
            x, shape = _line_maximum(out, node, x, shape, axis)
        if x == inputs[0]:
            x = out.scale(node.name, shape, x, 1.0, 0.0)
        return out.rename(x, node.name)

    return rewritten(network, rule, other) if any(isinstance(node, MaxPool) for node in network.nodes) else network


def _line_maximum(out: Rewriter, node: MaxPool, x: int, shape: Shape, axis: int) -> tuple[int, Shape]:
    """The largest value of each window along one axis: the new position and shape."""
    size, count, kernel = shape[1 + axis], node.shape[1 + axis], node.kernel[axis]
    stride, padding, dilation = node.stride[axis], node.padding[axis], node.dilation[axis]
    if (kernel, stride, padding, count) == (1, 1, 0, size):
        return x, shape
    lacking = (count - 1) * stride + dilation * (kernel - 1) + 1 - (size + 2 * padding)
    if lacking > 0:
        pads = (0, 0, 0, lacking) if axis == 0 else (0, lacking, 0, 0)
        shape = _with(shape, axis, size + lacking)
        x = out.add(Pad, f"{node.name}_pad", shape, x, pads=pads)
    result = _with(shape, axis, count)

    def taps(weights: Mapping[int, float]) -> int:
        """A convolution, channel by channel, with these weights on these taps."""
        line = out.like.new_zeros(shape[0], 1, kernel)
        for tap, weight in weights.items():
            line[:, :, tap] = weight
        sides = {"stride": (stride, 1), "padding": (padding, 0), "dilation": (dilation, 1)}
        pairs = {key: pair if axis == 0 else pair[::-1] for key, pair in sides.items()}
        kernels = line.unsqueeze(3 if axis == 0 else 2)
        return out.add(Conv, f"{node.name}_tap", result, x, weight=kernels, bias=None, groups=shape[0], **pairs)

    def only(position: int, windows: Tensor) -> int:
        """Zero for all windows but these."""
        if bool(windows.all()):
            return position
        mask = out.tensor(windows.float())
        return out.scale(f"{node.name}_only", result, position, mask.unsqueeze(1) if axis == 0 else mask, 0.0)

    # The maximum starts with a tap that reads a pixel: the same for all windows unless there is much padding.
    first = node.first_taps(size, axis)
    used = sorted(set(first.tolist()))
    best = only(taps({used[0]: 1.0}), first == used[0])
    for tap in used[1:]:
        best = out.add(Add, f"{node.name}_best", result, best, only(taps({tap: 1.0}), first == tap))
    plain = len(used) == 1  # best is one tap, and a difference to it is one convolution
    for tap in range(kernel):
        if used == [tap]:
            continue
        if plain:
            more = taps({tap: 1.0, used[0]: -1.0})
        else:
            minus = out.scale(f"{node.name}_minus", result, best, -1.0, 0.0)
            more = out.add(Add, f"{node.name}_more", result, taps({tap: 1.0}), minus)
        more = only(more, node.reads(size, axis, tap))  # padding must not count: the difference becomes 0
        gain = out.add(Activation, f"{node.name}_max", result, more, curve=ReLU(), auxiliary=True)
        best, plain = out.add(Add, f"{node.name}_best", result, best, gain), False
    return best, result


def evenly_padded(network: Network) -> Network:
    """The network without padding nodes before convolutions, where the kernel can be filled up with zeros instead.

    A convolution pads as much on both sides as the wider side needs; rows and columns of zeros in the kernel skip what
    is too much. With dilation, that must be a multiple of it.
    """

    def rule(out: Rewriter, node: Node, inputs: tuple[int, ...]) -> int | None:
        before = out.nodes[inputs[0]] if inputs else None
        if not isinstance(node, Conv) or not isinstance(before, Pad):
            return None
        left, right, top, bottom = before.pads
        (rows, columns), (down, across) = node.padding, node.dilation
        vertical, horizontal = (top + rows, bottom + rows), (left + columns, right + columns)
        missing = [(max(pair) - pair[0], max(pair) - pair[1]) for pair in (vertical, horizontal)]
        if any(n % step for pair, step in zip(missing, (down, across), strict=True) for n in pair):
            return None
        (above, below), (west, east) = missing
        above, below, west, east = above // down, below // down, west // across, east // across
        weight = F.pad(node.weight, (west, east, above, below))
        padding = (max(vertical), max(horizontal))
        return out.append(replace(node, inputs=before.inputs, weight=weight, padding=padding))

    return without_dead(rewritten(network, rule)) if any(isinstance(node, Pad) for node in network.nodes) else network


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[: 1 + axis], size, *shape[2 + axis :])


def kinks_at_zero(network: Network) -> Network:
    """The network with every piecewise linear activation as a sum of ReLUs: a split at zero makes each half a line.

    act(z) = a z + b + sum over kinks k of (change of slope at k) relu(z - k). Grafted neurons keep their line, in the
    place of a z + b. The first ReLU keeps the activation's name.
    """

    def rule(out: Rewriter, node: Node, inputs: tuple[int, ...]) -> int | None:
        if not isinstance(node, Activation) or not node.curve.kinks or node.curve.splits_at_zero:
            return None
        (z,), shape, curve = inputs, node.shape, node.curve
        at = out.tensor(curve.kinks[0])
        a, b = out.tensor(curve.slopes[0]).expand(shape), (curve(at) - curve.slopes[0] * at).expand(shape)
        graft = None
        if node.graft is not None:
            zero = torch.zeros_like(node.graft.gamma)
            graft = Graft(node.graft.mask, zero, zero)
            a, b = torch.where(graft.mask, node.graft.gamma, a), torch.where(graft.mask, node.graft.omega, b)
        total = out.scale(f"{node.name}_line", shape, z, a, b)
        changes = [right - left for left, right in zip(curve.slopes, curve.slopes[1:], strict=False)]
        for number, (kink, change) in enumerate(zip(curve.kinks, changes, strict=True)):
            moved = out.scale(f"{node.name}_from", shape, z, 1.0, -kink)
            relu = out.add(Activation, f"{node.name}_relu", shape, moved, curve=ReLU(), graft=graft)
            if number == 0:
                out.rename(relu, node.name)
            part = out.scale(f"{node.name}_part", shape, relu, change, 0.0)
            total = out.add(Add, f"{node.name}_sum", shape, total, part)
        return total

    return rewritten(network, rule)
