"""Bounds of single neurons of a layer: which need one, and the rows they start from."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import Plan, Window
from lipgraft.bounds.windows import channels_last
from lipgraft.network.graph import Conv, Linear, Network, Reshape


def selected(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the true elements of each row, (B, n) -> (B, S) with S the largest count; and which are real.

    Rows with fewer are filled with neuron 0. Its bound must not be used: it would depend on the rest of the batch.
    """
    count = wanted.sum(1)
    size = int(count.max()) if len(count) else 0
    slot = torch.where(wanted, wanted.cumsum(1) - 1, size)
    places = torch.arange(wanted.shape[1], device=wanted.device).expand_as(slot)
    out = torch.zeros(len(wanted), size + 1, dtype=torch.long, device=wanted.device)
    real = torch.arange(size, device=wanted.device) < count.unsqueeze(1)
    return out.scatter_(1, slot, places)[:, :size], real


def neuron_bounds(network: Network, path: Plan, relaxed: Relaxed, index: Tensor, signs: Tensor) -> Tensor:
    """Lower bounds of sign * neuron: index (B, S) into the flat target, signs (B, G, S) -> (B, G, S)."""
    node = network.nodes[path.target]
    image = len(node.shape) == 3
    area = node.shape[1] * node.shape[2] if image else 1
    channel, place = index // area, index % area
    point = Window((1, 1), (1, 1), (0, 0))
    window: Window | None
    bias: Tensor | None = None
    match node:
        case Conv():  # the first step back is a look into the weights
            start, bias, window, clean = node.inputs[0], node.bias, point.through_conv(node), not any(node.padding)
        case Linear():
            start, bias, window, clean = node.inputs[0], node.bias, None, True
        case _:
            start, window, clean = path.target, point if image else None, True
    while isinstance(network.nodes[start], Reshape) and start > path.root and window is None:
        start = network.nodes[start].inputs[0]
    if image or isinstance(node, Linear):
        rows = _looked_up(_table(network, path.target, start, relaxed), channel, signs)
    else:  # each row is its own neuron; a table of all would be the square of a layer
        one = F.one_hot(channel, math.prod(node.shape)).to(signs)
        rows = (signs.unsqueeze(-1) * one.unsqueeze(1)).view(*signs.shape, *network.nodes[start].shape)
    const = torch.zeros_like(signs) if bias is None else signs * bias[channel].unsqueeze(1)
    walk = Substitution(network, path, relaxed, place if image else None)
    return walk.lower_bound(Rows(rows, window, clean, spare=True), const, start)


def _table(network: Network, target: int, start: int, relaxed: Relaxed) -> Tensor:
    """For each neuron of a vector, each channel of an image, its row at node `start`: (n, *block)."""
    node, key = network.nodes[target], ("rows", target)
    if key not in relaxed.kernels:
        match node:
            case Conv():
                table = _full_weight(node)
            case Linear():
                table = node.weight.reshape(-1, *network.nodes[start].shape)
            case _:
                like = relaxed.root[0]
                table = torch.eye(node.shape[0], dtype=like.dtype, device=like.device)[..., None, None]
        if table.ndim == 4 and table.device.type == "cpu":
            table = table.contiguous(memory_format=torch.channels_last)
        relaxed.kernels[key] = table.detach()
    return relaxed.kernels[key]


def _looked_up(table: Tensor, channel: Tensor, signs: Tensor) -> Tensor:
    """sign * table[channel]: table (n, *block), channel (B, S), signs (B, G, S) -> (B, G, S, *block)."""
    last = channels_last(table)
    lines = table.movedim(1, -1) if last else table
    everyone = channel.unsqueeze(1).expand_as(signs).reshape(-1)
    rows = lines.flatten(1).index_select(0, everyone).view(*signs.shape, *lines.shape[1:])
    rows.mul_(signs.view(*signs.shape, *[1] * (table.ndim - 1)))
    return rows.movedim(-1, -3) if last else rows


def _full_weight(conv: Conv) -> Tensor:
    """The kernel with every input channel and its holes: (O, I, rows, columns), zero outside the group and the taps."""
    weight, (down, right) = conv.weight, conv.dilation
    if conv.dilation != (1, 1):
        rows, columns = ((k - 1) * d + 1 for k, d in zip(weight.shape[2:], conv.dilation, strict=True))
        weight = weight.new_zeros(*weight.shape[:2], rows, columns)
        weight[:, :, ::down, ::right] = conv.weight
    if conv.groups == 1:
        return weight
    out, per, kh, kw = weight.shape
    full = weight.new_zeros(conv.groups, out // conv.groups, conv.groups, per, kh, kw)
    own = torch.arange(conv.groups, device=full.device)
    full[own, :, own] = weight.view(conv.groups, out // conv.groups, per, kh, kw)
    return full.reshape(out, conv.groups * per, kh, kw)
