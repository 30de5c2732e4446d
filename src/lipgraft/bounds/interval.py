"""Interval arithmetic through the graph: cheap, loose, differentiable."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lipgraft.activations import Interval
from lipgraft.box import Box
from lipgraft.network.graph import Activation, Add, Conv, Input, Linear, Network, Node, Pad, Reshape, Scale

__all__ = ["Interval", "activation_interval", "interval_bounds", "interval_step"]


def interval_bounds(network: Network, box: Box) -> list[Interval]:
    """(lower, upper) of every node's value over each box, by interval arithmetic. Gradients flow to the parameters.

    The pre-activation interval of an activation is that of its input node.
    """
    out: list[Interval] = []
    for node in network.nodes:
        out.append(interval_step(node, [out[i] for i in node.inputs], box))
    return out


def interval_step(node: Node, inputs: list[Interval], box: Box) -> Interval:
    """The interval of one node from those of its inputs. Each end: (B, *shape)."""
    match node:
        case Input():
            return box.lower, box.upper
        case Conv():
            return _centred(
                inputs[0],
                lambda c: F.conv2d(c, node.weight, node.bias, node.stride, node.padding, node.dilation, node.groups),
                lambda r: F.conv2d(r, node.weight.abs(), None, node.stride, node.padding, node.dilation, node.groups),
            )
        case Linear():
            return _centred(
                inputs[0],
                lambda c: F.linear(c, node.weight, node.bias),
                lambda r: F.linear(r, node.weight.abs()),
            )
        case Add():
            (l1, u1), (l2, u2) = inputs
            return l1 + l2, u1 + u2
        case Scale():
            lb, ub = (node.scale * end for end in inputs[0])
            return torch.minimum(lb, ub) + node.shift, torch.maximum(lb, ub) + node.shift
        case Pad():
            lb, ub = inputs[0]
            return F.pad(lb, node.pads), F.pad(ub, node.pads)
        case Reshape():
            lb, ub = inputs[0]
            return lb.reshape(-1, *node.shape), ub.reshape(-1, *node.shape)
        case Activation():
            return activation_interval(node, inputs[0])
    raise AssertionError(f"no interval rule for {type(node).__name__}")


def activation_interval(node: Activation, pre: Interval) -> Interval:
    """The image of an interval under the activation, grafted neurons under their line."""
    lb, ub = pre
    low, high = node.curve.image(lb, ub)
    if node.graft is not None:
        mask, gamma, omega = node.graft.mask, node.graft.gamma, node.graft.omega
        rising = gamma >= 0  # cheaper to differentiate than the minimum of both ends
        low = torch.where(mask, gamma * torch.where(rising, lb, ub) + omega, low)
        high = torch.where(mask, gamma * torch.where(rising, ub, lb) + omega, high)
    return low, high


def _centred(interval: Interval, affine, linear_abs) -> Interval:  # type: ignore[no-untyped-def]
    """W c + b -/+ |W| r, with c and r the interval's centre and radius."""
    lb, ub = interval
    centre, radius = affine((lb + ub) / 2), linear_abs((ub - lb) / 2)
    return centre - radius, centre + radius
