"""BatchNorm in certified training: the statistics of the clean batch, for every pass of the step.

Points under attack, and intervals, have no statistics that would mean anything. So the clean batch goes through the
network once; what each BatchNorm sees there makes it a scale and a shift, and the network an ordinary one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lipgraft.network.build import trace
from lipgraft.network.graph import Conv, Linear, Network, Node, Scale
from lipgraft.network.lowering.naming import call_names
from lipgraft.network.tracing import trace_calls

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


@dataclass(frozen=True, eq=False)
class Normalised:
    """network: the graph with a Scale for each BatchNorm; layers: the modules, by the Scale's position."""

    network: Network
    layers: Mapping[int, BatchNorm]

    @staticmethod
    def of(model: nn.Module, shape: tuple[int, ...]) -> Normalised | None:
        """None where some BatchNorm does not follow a convolution or linear layer, or keeps no running mean."""
        calls = trace_calls(model)
        named = {
            name: calls.root.get_submodule(str(call.target))
            for call, name in call_names(calls.root, calls.graph).items()
            if call.op == "call_module"
        }
        network = trace(model, shape, fold=False)
        layers: dict[int, BatchNorm] = {}
        for i, node in enumerate(network.nodes):
            module = named.get(node.name)
            if not isinstance(module, BatchNorm) or not isinstance(node, Scale) or module.momentum is None:
                continue
            if isinstance(network.nodes[node.inputs[0]], Conv | Linear):
                layers[i] = module
        every = {module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)}
        return Normalised(network, layers) if every == set(layers.values()) else None

    def at(self, x: Tensor) -> tuple[Network, Tensor]:
        """The network by the statistics of the clean batch x, and its logits there; running statistics follow.

        Behind a convolution a BatchNorm becomes part of its kernel, which is small: no other pass of the step then has
        to scale and shift all neurons. The weights of a linear layer are more than its neurons, so there it stays.
        """
        values: list[Tensor] = []
        nodes: list[Node] = []
        place: list[int] = []  # among `nodes`, of each node of the graph
        for i, node in enumerate(self.network.nodes):
            inputs = [values[k] for k in node.inputs]
            if i in self.layers:
                assert isinstance(node, Scale)
                value, node = _by_batch(node, self.layers[i], inputs[0])
                values.append(value)
            else:
                values.append(node.forward(*inputs) if inputs else x)
            place.append(self._put(i, replace(node, inputs=tuple(place[k] for k in node.inputs)), nodes))
        return Network(tuple(nodes), place[self.network.output]), values[self.network.output]

    def _put(self, i: int, node: Node, nodes: list[Node]) -> int:
        """Append the graph's node i, or make it part of the convolution that nobody else reads; its place."""
        if i in self.layers and isinstance(node, Scale):
            (before,), reads = node.inputs, self.network.consumers()[self.network.nodes[i].inputs[0]]
            conv = nodes[before]
            if isinstance(conv, Conv) and len(reads) == 1:
                folded = conv.scaled(node.scale.flatten(), node.shift.flatten())
                if folded is not None:
                    nodes[before] = folded
                    return before
        nodes.append(node)
        return len(nodes) - 1


def _by_batch(node: Scale, layer: BatchNorm, z: Tensor) -> tuple[Tensor, Scale]:
    """weight (z - mean) / sqrt(var + eps) + bias: its value, and the node with that scale and shift, which have
    gradients through mean and variance.
    """
    scale, shift, mean, var, value = _Normalised.apply(z, layer.weight, layer.bias, layer.eps)  # type: ignore[no-untyped-call]
    _follow(layer, mean, var, z.numel() // z.shape[1])
    per_channel = (-1, *[1] * (z.ndim - 2))
    return value, replace(node, scale=scale.reshape(per_channel), shift=shift.reshape(per_channel))


class _Normalised(torch.autograd.Function):
    """z (B, C, ...) -> scale, shift, mean and variance, (C,) each, and scale z + shift in the type of z.

    By parts autograd would read and write all neurons some twenty times on the way back. But the gradient is one line,
    A g + B z + D with numbers per channel, whether it comes through the value or through scale and shift.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        axes, per_channel = [0, *range(2, z.ndim)], (-1, *[1] * (z.ndim - 2))
        var, mean = torch.var_mean(z.to(torch.promote_types(z.dtype, torch.float32)), axes, correction=0)
        inverse = torch.rsqrt(var + eps)
        scale = inverse.clone() if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        value = torch.empty_like(z)
        torch.addcmul(shift.view(per_channel), z, scale.view(per_channel), out=value)
        ctx.save_for_backward(z, mean, inverse, scale)
        ctx.axes, ctx.per_channel = axes, per_channel
        ctx.mark_non_differentiable(mean, var)
        return scale, shift, mean, var, value

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_scale: Tensor, by_shift: Tensor, by_mean: Tensor, by_var: Tensor, by_value: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        z, mean, inverse, scale = ctx.saved_tensors
        count = z.numel() // len(mean)
        zero = mean.new_zeros([1] * (z.ndim - 1))  # makes the products as precise as the sums
        by_shift = by_shift + by_value.sum(ctx.axes, dtype=mean.dtype)
        by_scale = by_scale + torch.addcmul(zero, by_value, z).sum(ctx.axes) - mean * by_shift  # at a fixed mean
        slope = -scale * inverse.square() * by_scale / count
        constant = -scale * by_shift / count - slope * mean
        by_z = torch.empty_like(z)
        line = torch.addcmul(constant.view(ctx.per_channel), z, slope.view(ctx.per_channel))
        torch.addcmul(line, by_value, scale.view(ctx.per_channel), out=by_z)
        _, weight, bias, _ = ctx.needs_input_grad
        return by_z, inverse * by_scale if weight else None, by_shift if bias else None, None


@torch.no_grad()
def _follow(layer: BatchNorm, mean: Tensor, var: Tensor, count: int) -> None:
    """Running statistics as PyTorch keeps them: the variance that of a sample."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    assert layer.momentum is not None
    layer.running_mean.lerp_(mean, layer.momentum)
    layer.running_var.lerp_(var * (count / max(count - 1, 1)), layer.momentum)
    layer.num_batches_tracked.add_(1)
