"""Bounds of single neurons of a layer: which need one, and the rows they start from."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import Plan
from lipgraft.network.graph import Affine, Network, Reshape
from lipgraft.network.window import POINT, channels_last


def positions(wanted: Tensor, fill: int = 0) -> tuple[Tensor, Tensor]:
    """Positions of the true elements of each row, (B, n) -> (B, S) with S the largest count; and which are real.

    Shorter rows are filled up with `fill`. What is computed for a filler must not be used: it would depend on the rest
    of the batch.
    """
    count = wanted.sum(1)
    size = int(count.max()) if len(count) else 0
    slot = torch.where(wanted, wanted.cumsum(1) - 1, size)
    places = torch.arange(wanted.shape[1], device=wanted.device).expand_as(slot)
    out = torch.full((len(wanted), size + 1), fill, device=wanted.device)
    real = torch.arange(size, device=wanted.device) < count.unsqueeze(1)
    return out.scatter_(1, slot, places)[:, :size], real


def neuron_bounds(network: Network, path: Plan, relaxed: Relaxed, index: Tensor, signs: Tensor) -> Tensor:
    """Lower bounds of sign * neuron: index (B, S) into the flat target, signs (B, G, S) -> (B, G, S)."""
    node = network.nodes[path.target]
    image = len(node.shape) == 3
    area = node.shape[1] * node.shape[2] if image else 1
    channel, place = index // area, index % area
    start, window, clean, const = path.target, POINT if image else None, True, torch.zeros_like(signs)
    weights = node if isinstance(node, Affine) and node.has_neuron_rows else None
    if weights is not None:  # the first step back is a look into the weights
        start, window, clean = node.inputs[0], node.window(POINT) if image else None, not weights.overhangs
        if weights.constant is not None:
            const = signs * weights.constant.flatten()[channel].unsqueeze(1)
    while isinstance(network.nodes[start], Reshape) and start > path.root and window is None:
        start = network.nodes[start].inputs[0]
    if image or weights is not None:
        rows = _looked_up(_table(network, path.target, start, relaxed), channel, signs)
    else:  # each row is its own neuron; a table of all would be the square of a layer
        one = F.one_hot(channel, math.prod(node.shape)).to(signs)
        rows = (signs.unsqueeze(-1) * one.unsqueeze(1)).view(*signs.shape, *network.nodes[start].shape)
    walk = Substitution(network, path, relaxed, place if image else None)
    return walk.lower_bound(Rows(rows, window, clean, spare=True), const, start)


def _table(network: Network, target: int, start: int, relaxed: Relaxed) -> Tensor:
    """For each neuron of a vector, each channel of an image, its row at node `start`: (n, *block)."""
    node, key = network.nodes[target], ("rows", target)
    if key not in relaxed.kernels:
        if isinstance(node, Affine) and node.has_neuron_rows:
            table = node.neuron_rows()
            table = table if len(node.shape) == 3 else table.reshape(-1, *network.nodes[start].shape)
        else:
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
