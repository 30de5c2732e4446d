"""Random small networks, sequential and residual, equal their graphs."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bounds_cases import BASES
from lipgraft.network import Input, evaluate, trace

ACTIVATIONS = st.sampled_from(list(BASES.values()))


class Residual(nn.Module):
    """x + f(x) or f(x) - x, where f keeps the shape."""

    def __init__(self, body: nn.Module, minus: bool) -> None:
        super().__init__()
        self.body, self.minus = body, minus

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) - x if self.minus else x + self.body(x)


@st.composite
def same_shape_layer(draw: st.DrawFn, channels: int) -> nn.Module:
    """A layer on images that keeps their shape."""
    kernel = draw(st.sampled_from([1, 3]))
    groups = draw(st.sampled_from([1, channels]))
    conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=draw(st.booleans()))
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(channels), draw(ACTIVATIONS)(), nn.Dropout(0.5)]
    keep = [True, *(draw(st.booleans()) for _ in layers[1:])]
    return nn.Sequential(*(layer for layer, kept in zip(layers, keep, strict=True) if kept))


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, int, int]]:
    """A random network and the shape of its input."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(4, 7)), draw(st.integers(4, 7)))
    channels = draw(st.integers(1, 3))
    layers: list[nn.Module] = [nn.Conv2d(shape[0], channels, 3, stride=draw(st.integers(1, 2)), padding=1)]
    for _ in range(draw(st.integers(0, 3))):
        body = draw(same_shape_layer(channels))
        layers.append(Residual(body, draw(st.booleans())) if draw(st.booleans()) else body)
    if draw(st.booleans()):
        layers.append(nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=draw(st.booleans())))
    layers.append(nn.Flatten())
    width = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
    layers += [nn.Linear(width, 5), nn.BatchNorm1d(5), draw(ACTIVATIONS)(), nn.Linear(5, 3)]
    return nn.Sequential(*layers), shape


@settings(max_examples=60, deadline=None)
@given(networks(), st.integers(0, 2**31 - 1))
def test_a_random_network_equals_its_graph(example: tuple[nn.Module, tuple[int, int, int]], seed: int) -> None:
    model, shape = example
    model = model.double().train()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.copy_(noise.abs() + 0.1 if name.endswith("running_var") else noise)
    network = trace(model, shape, check=False)

    x = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    values = evaluate(network, x)
    torch.testing.assert_close(values[network.output], model.eval()(x), rtol=1e-8, atol=1e-8)

    assert isinstance(network.nodes[0], Input)
    assert all(j < i for i, node in enumerate(network.nodes) for j in node.inputs)
    assert len(network.names) == len(network.nodes)
    assert all(tuple(v.shape[1:]) == node.shape for v, node in zip(values, network.nodes, strict=True))
    read = {j for node in network.nodes for j in node.inputs}
    assert read | {0, network.output} == set(range(len(network.nodes)))
