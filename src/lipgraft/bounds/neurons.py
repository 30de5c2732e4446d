"""Bounds of single neurons of a layer: which need one, and the rows they start from."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import Plan, Window
from lipgraft.network.graph import Conv, Linear, Network


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
        case Conv():  # the first step back is a look into the kernel
            start, bias, data = node.inputs[0], node.bias, _full_weight(node)[channel]
            window, clean = point.through_conv(node), not any(node.padding)
        case Linear():
            start, bias, data, window, clean = node.inputs[0], node.bias, node.weight[channel], None, True
        case _:
            start, clean, window = path.target, True, point if image else None
            one = F.one_hot(channel, node.shape[0] if image else math.prod(node.shape)).to(relaxed.root[0])
            data = one[..., None, None] if image else one.view(*index.shape, *node.shape)
    rows = signs.view(*signs.shape, *[1] * (data.ndim - 2)) * data.unsqueeze(1)
    const = torch.zeros_like(signs) if bias is None else signs * bias[channel].unsqueeze(1)
    walk = Substitution(network, path, relaxed, place if image else None)
    return walk.lower_bound(Rows(rows, window, clean), const, start)


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
