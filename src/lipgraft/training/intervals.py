"""Interval bounds as training differentiates them, for the losses that want tight bounds or stable neurons.

The intervals are those of `Node.interval`, kept as centre and radius, with gradients of their own through ReLUs and
lines. Building on `Node.interval` instead made a CPU step of CNN-B with the slope loss, half grafted, 8 % slower: every
node would turn ends into centre and radius and back, and autograd would record each of these operations.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipgraft.activations import ReLU
from lipgraft.bounds import fused
from lipgraft.errors import SettingsError
from lipgraft.network import evaluate
from lipgraft.network.graph import Activation, Affine, Linear, Network, Node
from lipgraft.training.precision import products_in, resolve
from lipgraft.training.task import Ball, Batch, Task, pixel_box


def graph_of(task: Task, batch: Batch) -> Network:
    """The network of this step, with live parameters."""
    if task.network is not None:
        return task.network
    if task.normalised is None:
        raise SettingsError(
            "the slope, rs and ibp-reg losses need a network without BatchNorm, dropout and reparametrised weights; "
            "fold BatchNorm with lipgraft.models.fold_batchnorm before fine-tuning."
        )
    if batch.kept.graph is None:
        batch.kept.graph, batch.kept.clean = task.normalised.at(batch.x)
    return batch.kept.graph


def clean_logits(task: Task, batch: Batch) -> Tensor:
    """f(x), (B, n)."""
    network = graph_of(task, batch)
    if batch.kept.clean is None:
        batch.kept.clean = evaluate(network, batch.x)[network.output]
    return batch.kept.clean


def box_balls(task: Task, batch: Batch) -> list[Ball]:
    """The ball of every node over the step's box: the radius that the step has reached, within [0, 1]."""
    if batch.kept.box is None:
        network, (lower, upper) = graph_of(task, batch), pixel_box(batch.x, task.settings.eps * batch.share)
        with exact_products(task, batch.x.device):
            batch.kept.box = balls_of(network, ((upper + lower) / 2, (upper - lower) / 2))
    return batch.kept.box


def pre_activations(task: Task, batch: Batch) -> list[tuple[Activation, Tensor, Tensor]]:
    """Each activation with centre and radius (B, *shape) of its input, over the step's box.

    The ReLUs that stand for max pooling are no neurons of the model, and are left out.
    """
    balls, network = box_balls(task, batch), graph_of(task, batch)
    return [(node, *balls[node.inputs[0]]) for _, node in network.activations() if not node.auxiliary]


def exact_products(task: Task, device: torch.device) -> AbstractContextManager[None]:
    """Never bf16: the radius, a small difference of larger numbers, is what these losses look at."""
    precision = resolve(task.settings.precision, device)
    return products_in("tf32" if precision == "bf16" else precision, device)


def balls_of(network: Network, ball: Ball, shrink: float = 1.0) -> list[Ball]:
    """The ball of every node over a ball of images. Gradients flow to the parameters.

    shrink: what the image [0, ub] of a ReLU that is unstable is multiplied by; below 1 these are no bounds.
    """
    balls: list[Ball] = []
    for node in network.nodes:
        inputs = [balls[k] for k in node.inputs]
        balls.append(ball_step(node, inputs, shrink) if inputs else ball)
    return balls


def margin_bounds(network: Network, balls: list[Ball], y: Tensor) -> Tensor:
    """Lower bounds of f_y - f_j, (B, n), 0 at j = y, from the balls of all nodes.

    Behind a last linear layer the margins are bounded, not the logits: (W_y - W_j) c - |W_y - W_j| r.
    """
    node = network.nodes[network.output]
    own = y[:, None]
    if not isinstance(node, Linear):
        centre, radius = balls[network.output]
        low = (centre - radius).gather(1, own) - (centre + radius)
        return low.scatter(1, own, 0.0)
    centre, radius = balls[node.inputs[0]]
    logits, classes = node.forward(centre), len(node.weight)
    apart = (node.weight[:, None] - node.weight).abs().flatten(0, 1)  # a row for each pair of classes
    spread = F.linear(radius, apart).view(-1, classes, classes)
    spread = spread.gather(1, own[:, :, None].expand(-1, 1, classes)).squeeze(1)
    return logits.gather(1, own) - logits - spread


def ball_step(node: Node, inputs: list[Ball], shrink: float = 1.0) -> Ball:
    """The ball of one node from those of its inputs. shrink: see `balls_of`."""
    if isinstance(node, Activation):
        return _activation(node, *inputs[0], shrink)
    assert isinstance(node, Affine)
    return node.forward(*(c for c, _ in inputs)), node.magnitude().linear(*(r for _, r in inputs))


def _activation(node: Activation, c: Tensor, r: Tensor, shrink: float) -> Ball:
    if not isinstance(node.curve, ReLU):
        lb, ub = node.interval((c - r, c + r))
        return (ub + lb) / 2, (ub - lb) / 2
    ball: Ball = _Relu.apply(c, r)  # type: ignore[no-untyped-call]
    if shrink != 1:
        factor = torch.where(c.detach().abs() < r.detach(), shrink, 1.0)
        ball = ball[0] * factor, ball[1] * factor
    if node.graft is None:
        return ball
    lines: Ball = _Lines.apply(*ball, c, r, node.graft.gamma, node.graft.omega, node.graft.mask)  # type: ignore[no-untyped-call]
    return lines


class _Relu(torch.autograd.Function):
    """[lb, ub] -> [relu(lb), relu(ub)].

    In plain PyTorch that reads and writes all neurons some twenty times, there and back; the kernels do it once. They
    keep nothing but the result, which the next layer keeps anyway.
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, r: Tensor) -> Ball:
        ctx.fused = fused.usable(c, r) and alike_in_memory(c, r)
        if ctx.fused:
            ball = _in_one_kernel("relu_ball", c, r)
            ctx.save_for_backward(*ball)
            return ball
        low, high = (c - r).clamp_(min=0.0), (c + r).clamp_(min=0.0)
        ctx.save_for_backward(low, high)
        return (high + low).mul_(0.5), (high - low).mul_(0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_c: Tensor, by_r: Tensor) -> Ball:
        if ctx.fused:
            c, r = ctx.saved_tensors
            return _in_one_kernel("relu_ball_backward", c, r, _laid_out(by_c, c), _laid_out(by_r, c))
        low, high = ctx.saved_tensors
        gate = torch.ops.aten.threshold_backward
        by_low, by_high = gate(by_c - by_r, low, 0.0), gate(by_c + by_r, high, 0.0)
        return (by_high + by_low).mul_(0.5), (by_high - by_low).mul_(0.5)


BLOCK = 1024
"""Elements that one program of a kernel works on."""


def _in_one_kernel(name: str, *inputs: Tensor) -> Ball:
    """The kernel's two results, laid out like its inputs, which are all alike."""
    from lipgraft.training import kernels  # needs Triton, which comes with PyTorch for GPUs only

    out = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
    size = inputs[0].numel()
    if size:
        getattr(kernels, name)[(-(-size // BLOCK),)](*inputs, *out, size, BLOCK=BLOCK)
    return out


def alike_in_memory(a: Tensor, b: Tensor) -> bool:
    """Whether both fill their memory without gaps, in the same order, so that it can be read in step."""
    dense = a.is_contiguous() or (a.ndim == 4 and a.is_contiguous(memory_format=torch.channels_last))
    return dense and a.stride() == b.stride() and a.dtype == b.dtype


def _laid_out(values: Tensor, like: Tensor) -> Tensor:
    return values if alike_in_memory(like, values) else torch.empty_like(like).copy_(values)


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
