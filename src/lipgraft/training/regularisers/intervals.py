"""Interval bounds of the pre-activations over the clean box, for the losses that want neurons to be stable.

The intervals are those of `Node.interval`, kept as centre and radius, with gradients of their own through ReLUs and
lines. Building on `Node.interval` instead made a CPU step of CNN-B with the slope loss, half grafted, 8 % slower: every
node would turn ends into centre and radius and back, and autograd would record each of these operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipgraft.activations import ReLU
from lipgraft.errors import SettingsError
from lipgraft.network.graph import Activation, Affine, Network, Node
from lipgraft.training.precision import products_in, resolve
from lipgraft.training.task import Batch, Task, pixel_box

Ball = tuple[Tensor, Tensor]
"""Centre and radius, (B, *shape) each."""


def pre_activations(task: Task, batch: Batch) -> list[tuple[Activation, Tensor, Tensor]]:
    """Each activation with centre and radius (B, *shape) of its input, over the eps-box around x within [0, 1].

    The ReLUs that stand for max pooling are no neurons of the model, and are left out.

    Never in bf16: the radius, a small difference of larger numbers, is what these losses look at.
    """
    if task.network is None:
        raise SettingsError(
            "the slope and rs losses need a network without BatchNorm, dropout and reparametrised weights; fold "
            "BatchNorm with lipgraft.models.fold_batchnorm before fine-tuning."
        )
    eps, device = task.settings.eps, batch.x.device
    precision = resolve(task.settings.precision, device)
    lower, upper = pixel_box(batch.x, eps)
    with products_in("tf32" if precision == "bf16" else precision, device):
        balls = pre_activation_balls(task.network, ((upper + lower) / 2, (upper - lower) / 2))
        return [(node, *ball) for node, ball in balls if not node.auxiliary]


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
