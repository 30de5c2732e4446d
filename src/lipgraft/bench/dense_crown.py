"""CROWN as one would write it first: rows over whole layers, for every neuron of a layer at once.

This is what `lipgraft bench bounds` compares the engine with. It computes the same bounds as
`bound(..., neurons="all")`; only the work is organised plainly: no windows, no selection, no chunks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from lipgraft.bounds.geometry import interval_is_exact
from lipgraft.bounds.interval import Interval, interval_step
from lipgraft.bounds.relaxations import Lines, relax
from lipgraft.box import Box
from lipgraft.network import Activation, Add, Conv, Linear, Network, Node, Pad, Reshape, Scale

LIVE = 3  # tensors of the size of the rows that live at once


def targets(network: Network) -> list[int]:
    """The pre-activations whose range interval arithmetic does not find exactly."""
    exact = interval_is_exact(network)
    return sorted({act.inputs[0] for _, act in network.activations() if not exact[act.inputs[0]]})


def bytes_per_image(network: Network) -> int:
    """What the rows of all neurons of one layer take, at the worst layer, in float32."""
    sizes = [math.prod(node.shape) for node in network.nodes]
    return 4 * LIVE * max((sizes[i] * max(sizes[: i + 1]) for i in targets(network)), default=0)


def dense_crown(network: Network, box: Box, C: Tensor) -> tuple[Tensor, list[Interval]]:
    """Lower bounds of C f(x), (B, S, n) -> (B, S), and the interval of every node."""
    wanted = set(targets(network))
    intervals: list[Interval] = []
    lines: dict[int, Lines] = {}
    for i, node in enumerate(network.nodes):
        lb, ub = interval_step(node, [intervals[j] for j in node.inputs], box)
        if isinstance(node, Activation):
            lines[i] = relax(node, *intervals[node.inputs[0]])
        if i in wanted:
            size = math.prod(node.shape)
            rows = torch.eye(size, dtype=lb.dtype, device=lb.device).view(1, size, *node.shape)
            rows = rows.expand(len(box), *rows.shape[1:])
            lb = torch.maximum(lb, minimum(network, lines, box, i, rows).view_as(lb))
            ub = torch.minimum(ub, -minimum(network, lines, box, i, -rows).view_as(ub))
        intervals.append((lb, ub))
    return minimum(network, lines, box, network.output, C), intervals


def minimum(network: Network, lines: dict[int, Lines], box: Box, target: int, rows: Tensor) -> Tensor:
    """min over the box of sum(rows * value of target): (B, R, *shape) -> (B, R)."""
    const = rows.new_zeros(rows.shape[:2])
    waiting = {target: rows}
    for i in range(target, 0, -1):
        if i not in waiting:
            continue
        node, here = network.nodes[i], waiting.pop(i)
        if isinstance(node, Activation):
            back, added = through_activation(lines[i], here)
        else:
            back, added = through_affine(network, node, here)
        const = const + added
        for j in node.inputs:
            waiting[j] = waiting[j] + back if j in waiting else back
    last = waiting[0].flatten(2)
    centre, radius = box.centre.flatten(1).unsqueeze(-1), box.radius.flatten(1).unsqueeze(-1)
    return const + (last @ centre - last.abs() @ radius).squeeze(-1)


def through_activation(lines: Lines, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Positive coefficients take the lower line, negative ones the upper line."""
    positive, negative = rows.clamp(min=0), rows.clamp(max=0)
    back = positive * lines.lower_slope.unsqueeze(1) + negative * lines.upper_slope.unsqueeze(1)
    added = rows.new_zeros(rows.shape[:2])
    for part, intercept in ((positive, lines.lower_intercept), (negative, lines.upper_intercept)):
        if intercept is not None:
            added = added + (part.flatten(2) @ intercept.flatten(1).unsqueeze(-1)).squeeze(-1)
    return back, added


def through_affine(network: Network, node: Node, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows on an affine node's value -> rows on each of its inputs, and what its constant adds: (B, R)."""
    zero = rows.new_zeros(rows.shape[:2])
    shape = network.nodes[node.inputs[0]].shape
    match node:
        case Conv():
            flat = rows.flatten(0, 1)
            size = (len(flat), *shape)
            back: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
                size, node.weight, flat, node.stride, node.padding, node.dilation, node.groups
            )
            added = zero if node.bias is None else rows.sum((-2, -1)) @ node.bias
            return back.view(*rows.shape[:2], *shape), added
        case Linear():
            return rows @ node.weight, zero if node.bias is None else rows @ node.bias
        case Add():
            return rows, zero
        case Scale():
            return rows * node.scale, (rows * node.shift).flatten(2).sum(-1)
        case Pad():
            left, right, top, bottom = node.pads
            return rows[..., top : rows.shape[-2] - bottom, left : rows.shape[-1] - right], zero
        case Reshape():
            return rows.reshape(*rows.shape[:2], *shape), zero
    raise AssertionError(f"no rule for {type(node).__name__}")
