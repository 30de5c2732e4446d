"""Networks of convolutions whose neurons see windows: edges, strides, grafted lines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipgraft.bounds.window_network import WindowNetwork
from lipgraft.box import Box
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.models.layers import Normalise
from lipgraft.network import Network, kinks_at_zero, trace

SIZE = 17


def activation(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> nn.Module:
    curve = nn.LeakyReLU(0.125) if kind == "leaky" else nn.ReLU()
    if kind != "grafted":
        return curve
    mask = torch.rand(shape, generator=generator) < 0.4
    return GraftedActivation(
        curve, mask, torch.rand(shape, generator=generator), torch.randn(shape, generator=generator)
    )


def module(kind: str, seed: int = 0) -> nn.Sequential:
    """Normalisation, padding of its own, convolutions with and without padding, strides, a vector at the end."""
    generator = torch.Generator().manual_seed(seed)
    convs = [nn.Conv2d(2, 3, 3, stride=2), nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 2)]
    model = nn.Sequential(
        Normalise((0.4, 0.5), (0.5, 0.25)),
        nn.ZeroPad2d((1, 0, 0, 1)),
        convs[0],
        activation(kind, (3, 8, 8), generator),
        convs[1],
        activation(kind, (4, 8, 8), generator),
        convs[2],
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(147, 3),
    )
    with torch.no_grad():
        for layer in (*convs, model[-1]):
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / layer.weight[0].numel() ** 0.5)
            assert layer.bias is not None
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator) / 4)
    return model.double()


def network(kind: str, seed: int = 0) -> Network:
    return kinks_at_zero(trace(module(kind, seed), (2, SIZE, SIZE)).to())


def targets(net: Network) -> list[int]:
    """The convolutions behind the first one."""
    return [act.inputs[0] for _, act in net.activations()][1:]


def boxes(count: int, eps: float, seed: int = 1) -> Box:
    x = torch.rand(count, 2, SIZE, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Box.linf(x, eps)


def everyone(net: Network, target: int, count: int) -> tuple[Tensor, Tensor]:
    """Every neuron of the target in every box."""
    size = torch.Size(net.nodes[target].shape).numel()
    return torch.arange(count).repeat_interleave(size), torch.arange(size).repeat(count)


def seen(net: Network, target: int) -> WindowNetwork:
    found = WindowNetwork.of(net, target)
    assert found is not None
    return found
