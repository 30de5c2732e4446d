"""Steps back through one affine node, for weights of non-negative worth: max_k |w_kj| v_k, or the sum over k."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.graph import Add, Conv, Linear, Node, Pad, Reshape, Scale, Shape

CHUNK = 2**26  # elements of the largest intermediate tensor


def max_push(node: Node, v: Tensor, shape: Shape) -> Tensor:
    """v: (*node.shape), >= 0 -> (*shape): at the node's input j, the largest |w_kj| v_k over the outputs k."""
    if isinstance(node, Linear):
        return (node.weight.abs() * v[:, None]).amax(0)
    if isinstance(node, Conv):
        return _conv_max(node, v, shape)
    return _diagonal(node, v, shape)


def sum_push(node: Node, v: Tensor, shape: Shape) -> Tensor:
    """As `max_push`, with the sum over k in place of the maximum."""
    if isinstance(node, Linear):
        return v @ node.weight.abs()
    if isinstance(node, Conv):
        return _conv_sum(node, v, shape)
    return _diagonal(node, v, shape)


def _diagonal(node: Node, v: Tensor, shape: Shape) -> Tensor:
    """Nodes that send each input to at most one output: there is nothing to maximise or to sum."""
    if isinstance(node, Scale):
        return v * node.scale.abs()
    if isinstance(node, Pad):
        left, _, top, _ = node.pads
        return v[..., top : top + shape[-2], left : left + shape[-1]]
    if isinstance(node, Reshape):
        return v.reshape(shape)
    if isinstance(node, Add):
        return v
    raise UnsupportedOperationError(f"no weights are known through {node.name} ({type(node).__name__}).")


def _conv_sum(node: Conv, v: Tensor, shape: Shape) -> Tensor:
    """The transposed convolution with |W|. Input rows that no output reads (a remainder of the stride) get 0."""
    sizes = zip(shape[1:], node.shape[1:], node.stride, node.padding, node.dilation, node.weight.shape[2:], strict=True)
    unread = [size - ((out - 1) * s - 2 * p + d * (k - 1) + 1) for size, out, s, p, d, k in sizes]
    weight = node.weight.abs()
    return F.conv_transpose2d(v[None], weight, None, node.stride, node.padding, unread, node.groups, node.dilation)[0]


def _conv_max(node: Conv, v: Tensor, shape: Shape) -> Tensor:
    """For each kernel tap, the best output channel at every output position, placed where that tap reads.

    Within one tap the positions read are distinct, so placing is a maximum on a strided view: no scatter is needed.
    """
    groups, (sy, sx), (py, px), (dy, dx) = node.groups, node.stride, node.padding, node.dilation
    (channels, height, width), (_, rows, columns) = shape, node.shape
    kh, kw = node.weight.shape[2:]
    weight = node.weight.abs().reshape(groups, -1, channels // groups, kh, kw)
    outputs = v.reshape(groups, -1, 1, rows * columns)
    step = max(1, CHUNK // (channels * rows * columns))
    worth = v.new_zeros(channels, height + 2 * py, width + 2 * px)
    for ky in range(kh):
        for kx in range(kw):
            tap = weight[..., ky, kx, None]  # (groups, O / groups, I / groups, 1)
            best = v.new_zeros(groups, channels // groups, rows * columns)
            for o in range(0, tap.shape[1], step):
                best = torch.maximum(best, (tap[:, o : o + step] * outputs[:, o : o + step]).amax(1))
            y, x = ky * dy, kx * dx
            place = worth[:, y : y + sy * (rows - 1) + 1 : sy, x : x + sx * (columns - 1) + 1 : sx]
            torch.maximum(place, best.reshape(channels, rows, columns), out=place)
    return worth[:, py : py + height, px : px + width]
