"""Interval arithmetic by centre and radius, with gradients of its own: what a loss on bounds costs in each step.

The same intervals as `lipgraft.bounds.interval`, whose rules serve proofs; here in a form
that convolutions take as it is, with fewer operations through ReLUs and lines than autograd would record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipgraft.activations import ReLU
from lipgraft.network.graph import Activation, Affine, Network, Node

Ball = tuple[Tensor, Tensor]
"""Centre and radius, (B, *shape) each."""


def pre_activation_balls(network: Network, ball: Ball) -> Iterator[tuple[Activation, Ball]]:
    """Each activation with the ball of its input, over a ball of images. Gradients flow to the parameters."""
    balls: list[Ball] = []
    last = max((i for i, _ in network.activations()), default=-1)
    for i, node in enumerate(network.nodes[: last + 1]):
        inputs = [balls[k] for k in node.inputs]
        if isinstance(node, Activation):
            yield node, inputs[0]
        if i < last:
            balls.append(step(node, inputs) if inputs else ball)


def step(node: Node, inputs: list[Ball]) -> Ball:
    """The ball of one node from those of its inputs."""
    if isinstance(node, Activation):
        return _activation(node, *inputs[0])
    assert isinstance(node, Affine)
    return node.forward(*(c for c, _ in inputs)), node.magnitude().linear(*(r for _, r in inputs))


def _activation(node: Activation, c: Tensor, r: Tensor) -> Ball:
    if not isinstance(node.curve, ReLU):
        lb, ub = node.interval((c - r, c + r))
        return (ub + lb) / 2, (ub - lb) / 2
    ball: Ball = _Relu.apply(c, r)  # type: ignore[no-untyped-call]
    if node.graft is None:
        return ball
    lines: Ball = _Lines.apply(*ball, c, r, node.graft.gamma, node.graft.omega, node.graft.mask)  # type: ignore[no-untyped-call]
    return lines


class _Relu(torch.autograd.Function):
    """[lb, ub] -> [relu(lb), relu(ub)]."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, r: Tensor) -> Ball:
        low, high = (c - r).clamp_(min=0.0), (c + r).clamp_(min=0.0)
        ctx.save_for_backward(low, high)
        return (high + low).mul_(0.5), (high - low).mul_(0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_c: Tensor, by_r: Tensor) -> Ball:
        low, high = ctx.saved_tensors
        gate = torch.ops.aten.threshold_backward
        by_low, by_high = gate(by_c - by_r, low, 0.0), gate(by_c + by_r, high, 0.0)
        return (by_high + by_low).mul_(0.5), (by_high - by_low).mul_(0.5)


class _Lines(torch.autograd.Function):
    """The ball of gamma z + omega where the mask says so, elsewhere the one given."""

    @staticmethod
    def forward(
        ctx: Any, c0: Tensor, r0: Tensor, c: Tensor, r: Tensor, gamma: Tensor, omega: Tensor, mask: Tensor
    ) -> Ball:
        ctx.save_for_backward(c, r, gamma, mask)
        return torch.where(mask, torch.addcmul(omega, gamma, c), c0), torch.where(mask, gamma.abs() * r, r0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_c: Tensor, by_r: Tensor) -> tuple[Tensor | None, ...]:
        c, r, gamma, mask = ctx.saved_tensors
        kept = ~mask
        to_c, to_r = torch.where(mask, gamma, 0.0), torch.where(mask, gamma.abs(), 0.0)
        by_slope = (by_c * c).sum(0) + gamma.sign() * (by_r * r).sum(0)
        by_gamma, by_omega = torch.where(mask, by_slope, 0.0), torch.where(mask, by_c.sum(0), 0.0)
        return by_c * kept, by_r * kept, by_c * to_c, by_r * to_r, by_gamma, by_omega, None
