"""What a neuron of a convolution sees, as a network of its own: the same numbers as the whole network's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.one_layer import OneLayer, OneLayerBound
from lipgraft.bounds.window_network import WindowNetwork
from lipgraft.network import evaluate, trace
from window_networks import boxes, everyone, network, seen, targets


@pytest.mark.parametrize("kind", ["relu", "leaky", "grafted"])
def test_a_box_of_a_single_point_gives_every_neuron_its_value_also_at_the_edge(kind: str) -> None:
    net, box = network(kind), boxes(3, 0.0)
    prepared = prepare(net, box)
    for target in targets(net):
        window = seen(net, target)
        image, neuron = everyone(net, target, 3)
        rows = window.rows(neuron, torch.ones(len(neuron), dtype=torch.float64))
        function = LowerBound(
            window.bounds(prepared.intervals, image, neuron), image.new_tensor(range(len(image))), rows
        )
        value, _ = function.value(function.start(), function.no_splits())
        true = evaluate(net, box.lower)[target].flatten(1)[image, neuron]
        torch.testing.assert_close(value, true, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["relu", "leaky", "grafted"])
def test_bounds_without_splits_are_those_of_the_whole_network(kind: str) -> None:
    net = network(kind)
    prepared = prepare(net, boxes(2, 0.05))
    for target in targets(net):
        window = seen(net, target)
        image, neuron = everyone(net, target, 2)
        one = torch.ones(len(neuron), dtype=torch.float64)
        function = LowerBound(
            window.bounds(prepared.intervals, image, neuron), torch.arange(len(image)), window.rows(neuron, -one)
        )
        whole = NeuronBounds.of(Layout.of(net, target), prepared.intervals)
        rows = -torch.eye(torch.Size(net.nodes[target].shape).numel(), dtype=torch.float64)[neuron]
        dense = LowerBound(whole, image, rows.view(-1, 1, 1, *net.nodes[target].shape))
        here, there = (f.value(f.start(), f.no_splits())[0] for f in (function, dense))
        torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-9)


def splits(bounds: NeuronBounds, count: int, depth: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, splits of their open neurons by place, and numbers for lines and multipliers."""
    generator = torch.Generator().manual_seed(seed)
    width = bounds.open.shape[1]
    row = torch.randint(len(bounds.open), (count,), generator=generator)
    column = torch.stack([torch.randperm(width, generator=generator)[:depth] for _ in range(count)])
    real = bounds.open[row].gather(1, column) < bounds.layout.size
    sign = torch.where(torch.rand(count, depth, generator=generator) < 0.5, 1.0, -1.0).double() * real
    alpha = torch.rand(count, width, generator=generator, dtype=torch.float64)
    beta = torch.rand(count, depth, generator=generator, dtype=torch.float64) * real
    return row, torch.where(real, column, width), sign, torch.cat([alpha, beta], 1)


@pytest.mark.parametrize("kind", ["relu", "leaky", "grafted"])
def test_the_quick_function_of_one_hidden_layer_is_the_general_one(kind: str) -> None:
    net = network(kind)
    prepared = prepare(net, boxes(2, 0.1))
    target = targets(net)[0]
    window = seen(net, target)
    image, neuron = everyone(net, target, 2)
    bounds = window.bounds(prepared.intervals, image, neuron)
    rows = window.rows(neuron, torch.where(neuron % 2 == 0, 1.0, -1.0).double())
    row, column, sign, numbers = splits(bounds, 40, 3, seed=2)
    alpha, beta = numbers.split([bounds.open.shape[1], 3], 1)
    quick = OneLayerBound(OneLayer(bounds, rows), row, column, sign)
    flat = torch.cat([bounds.open, torch.full((len(bounds.open), 1), bounds.layout.size)], 1)[row].gather(1, column)
    general = LowerBound(bounds, row, rows[row], flat, sign)
    for here, there in zip(quick.value(alpha, beta), general.value(alpha, beta), strict=True):
        torch.testing.assert_close(here, there.view_as(here), rtol=1e-6, atol=1e-9)  # lines are rounded outward there
    assert torch.equal(quick.free, general.free)
    real = general.open < bounds.layout.size
    coefficients = [f.coefficients(alpha, beta)[real] for f in (quick, general)]
    torch.testing.assert_close(*coefficients, rtol=1e-9, atol=1e-9)


def test_a_network_that_is_no_chain_of_convolutions_or_sees_everything_has_no_window() -> None:
    net = network("relu")
    assert WindowNetwork.of(net, net.output) is None  # a vector
    first = next(act.inputs[0] for _, act in net.activations())
    assert WindowNetwork.of(net, first) is None  # its interval is exact: no activation before it
    affine = trace(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 2), nn.ReLU(), nn.Flatten()), (1, 9, 9))
    assert WindowNetwork.of(affine, 2) is None  # no activation before it either
    smooth = trace(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(50, 2)),
        (1, 9, 9),
    )
    assert WindowNetwork.of(smooth, 3) is None  # nothing to split at
