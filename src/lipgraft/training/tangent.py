"""A network and its directional derivative in one pass over a stacked batch.

The gradient of <v, grad_x L(x)> with respect to the weights, for a fixed v, is what gradient alignment needs. It equals
that of the directional derivative of L along v, which is an ordinary forward computation: the rows v run through the
same layers without biases, through each activation by its slope at x. One backward pass then replaces the double one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipgraft.activations import Curve, ReLU
from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.graph import Activation, Affine, Network, Node


@dataclass(frozen=True)
class Stack:
    """How rows are stacked: `points` rows of values, then `tangents` rows of directions at the last of these points.

    constant: gradients to biases and lines are not wanted.
    """

    points: int
    tangents: int
    constant: bool = False

    def held(self, parameter: Tensor) -> Tensor:
        """A bias or line, which gradients do not reach when they are constant."""
        return parameter.detach() if self.constant else parameter

    @property
    def first(self) -> int:
        """The row of the point that the first tangent sits on."""
        return self.points - self.tangents


def value_and_tangent(network: Network, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) (P, n), and the derivative of f along v at the last T of these points, (T, n).

    x: (P, *shape); v: (T, *shape), T <= P. Gradients flow to the parameters, through both.
    """
    stack = Stack(len(x), len(v))
    out = _through(network, torch.cat([x, v]), stack)
    return out[: stack.points], out[stack.points :]


def value(network: Network, x: Tensor) -> Tensor:
    """f(x) (P, n), with gradients to x alone: nothing that only parameters need is computed on the way back."""
    return _through(network, x, Stack(len(x), 0, constant=True))


def _through(network: Network, rows: Tensor, stack: Stack) -> Tensor:
    values: list[Tensor] = []
    for node in network.nodes:
        values.append(_forward(node, [values[i] for i in node.inputs], stack) if node.inputs else rows)
    return values[network.output]


def _forward(node: Node, inputs: list[Tensor], stack: Stack) -> Tensor:
    if isinstance(node, Activation):
        return _activation(node, inputs[0], stack)
    if not isinstance(node, Affine):
        raise UnsupportedOperationError(f"no directional derivative for the node {node.name} ({type(node).__name__}).")
    out, constant = node.linear(*inputs), node.constant
    return out if constant is None else _shift_points(out, stack.held(constant), stack)


def _activation(node: Activation, z: Tensor, stack: Stack) -> Tensor:
    if isinstance(node.curve, ReLU) and node.graft is not None:
        gamma, omega = stack.held(node.graft.gamma), stack.held(node.graft.omega)
        grafted: Tensor = _GraftedRelu.apply(z, gamma, omega, node.graft.mask, stack.points, stack.first)  # type: ignore[no-untyped-call]
        return grafted
    out = _relu(z, stack) if isinstance(node.curve, ReLU) else _curve(node.curve, z, stack)
    if node.graft is None:
        return out
    line = _shift_points(stack.held(node.graft.gamma).to(z.dtype) * z, stack.held(node.graft.omega), stack)
    return torch.where(node.graft.mask, line, out)


def _shift_points(z: Tensor, constant: Tensor, stack: Stack) -> Tensor:
    """z + constant for the points, in place; a constant does not move a direction."""
    out: Tensor = _ShiftPoints.apply(z, constant, stack.points)  # type: ignore[no-untyped-call]
    return out


class _ShiftPoints(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, constant: Tensor, points: int) -> Tensor:
        ctx.mark_dirty(z)
        ctx.points, ctx.shape, ctx.dtype = points, constant.shape, constant.dtype
        z[:points].add_(constant)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if not ctx.needs_input_grad[1]:
            return gradient, None, None
        shape = (1,) * (gradient.ndim - len(ctx.shape)) + tuple(ctx.shape)
        axes = [axis for axis, size in enumerate(shape) if size == 1]
        return gradient, gradient[: ctx.points].sum(axes, dtype=ctx.dtype).reshape(ctx.shape), None


class _Relu(torch.autograd.Function):
    """relu for the points, and the gate of its point for each tangent: one kernel each, no copies between them."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, points: int, first: int) -> Tensor:
        out = torch.empty_like(z)
        torch.clamp(z[:points], min=0.0, out=out[:points])
        _gate(z[points:], z[first:points], out[points:])
        ctx.save_for_backward(out)
        ctx.points, ctx.first = points, first
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        points, first = ctx.points, ctx.first
        result = torch.empty_like(out)
        _gate(gradient[:points], out[:points], result[:points])
        _gate(gradient[points:], out[first:points], result[points:])
        return result, None, None


class _GraftedRelu(torch.autograd.Function):
    """ReLUs and lines alike are slope z + offset; the slope, found once per point, is all that the way back needs."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, gamma: Tensor, omega: Tensor, mask: Tensor, points: int, first: int) -> Tensor:
        line, offset = (_laid_out_like(z[0], t, z.dtype) for t in (gamma, torch.where(mask, omega, 0.0)))
        slope = torch.where(_laid_out_like(z[0], mask, torch.bool), line, z[:points] > 0)
        out = torch.empty_like(z)
        torch.addcmul(offset, slope, z[:points], out=out[:points])
        torch.mul(slope[first:], z[points:], out=out[points:])
        ctx.save_for_backward(z, slope, mask)
        ctx.points, ctx.first, ctx.dtype = points, first, gamma.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None, None]:
        z, slope, mask = ctx.saved_tensors
        points, result = ctx.points, torch.empty_like(z)
        torch.mul(gradient[:points], slope, out=result[:points])
        torch.mul(gradient[points:], slope[ctx.first :], out=result[points:])
        by_gamma = by_omega = None
        if ctx.needs_input_grad[1]:
            by_gamma = torch.where(mask, (gradient * z).sum(0, dtype=ctx.dtype), 0.0)
        if ctx.needs_input_grad[2]:
            by_omega = torch.where(mask, gradient[:points].sum(0, dtype=ctx.dtype), 0.0)
        return result, by_gamma, by_omega, None, None, None


def _laid_out_like(z: Tensor, constant: Tensor, dtype: torch.dtype) -> Tensor:
    """The constant in z's order of memory: what runs over a batch of z then reads both in step."""
    if z.stride() == constant.stride():
        return constant.to(dtype)
    return torch.empty_like(z, dtype=dtype).copy_(constant)


def _gate(value: Tensor, at: Tensor, out: Tensor) -> None:
    """out <- value where at > 0, else 0."""
    torch.ops.aten.threshold_backward.grad_input(value, at, 0.0, grad_input=out)


def _relu(z: Tensor, stack: Stack) -> Tensor:
    out: Tensor = _Relu.apply(z, stack.points, stack.first)  # type: ignore[no-untyped-call]
    return out


def _curve(curve: Curve, z: Tensor, stack: Stack) -> Tensor:
    value, slope = curve.value_and_slope(z[: stack.points])
    return torch.cat([value, slope[stack.first :] * z[stack.points :]])
