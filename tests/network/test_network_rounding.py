"""What rounding can do to a graph's values: an upper bound of it, and the tolerance of comparisons."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bounds_cases import ACTIVATIONS, BASES, SMALL, small_cnn
from bounds_graphs import image_networks
from lipgraft.errors import UnsupportedOperationError
from lipgraft.network import Network, agree, evaluate, rounding_errors, rounding_tolerance, trace
from lipgraft.network.rounding import last_rounding

SCALES = torch.tensor([0.0, 0.01, 1.0, 100.0])


def points(network: Network, seed: int) -> Tensor:
    """Inputs of several sizes, in float32."""
    x = torch.randn(len(SCALES), *network.input_shape, generator=torch.Generator().manual_seed(seed))
    return x * SCALES.view(-1, *[1] * len(network.input_shape))


@torch.no_grad()
def assert_bounded(network: Network, x: Tensor) -> None:
    """At every node, single precision is as near to double precision as the bound says."""
    network = network.to(dtype=torch.float32)
    values, exact = evaluate(network, x), evaluate(network.to(dtype=torch.float64), x.double())
    for node, value, true, error in zip(network.nodes, values, exact, rounding_errors(network, values), strict=True):
        assert bool(((value.double() - true).abs() <= error).all()), node.name


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(image_networks(), st.integers(0, 2**31 - 1))
def test_rounding_errors_bound_what_single_precision_does_in_random_networks(network: Network, seed: int) -> None:
    assert_bounded(network, points(network, seed))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_rounding_errors_bound_what_single_precision_does_with_every_activation(
    activation: str, generator: torch.Generator
) -> None:
    network = trace(small_cnn(activation, generator), SMALL)
    assert_bounded(network, points(network, 0))


@pytest.mark.parametrize("activation", BASES)
def test_rounding_errors_bound_what_single_precision_does_all_along_a_curve(activation: str) -> None:
    z = torch.linspace(-20, 20, 4001)
    assert_bounded(trace(nn.Sequential(BASES[activation]()), z.shape), torch.stack([z, z / 100, 100 * z]))


def test_rounding_errors_bound_what_cancellation_leaves() -> None:
    """Four copies of a neuron with weights that cancel."""
    first, second = nn.Linear(2, 4), nn.Linear(4, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([0.1, 0.3]).expand(4, 2))
        first.bias.fill_(1e3)
        second.weight.copy_(torch.tensor([[1.0, 1.0, -1.0, -1.0]]) * 1e3 / 3)
        second.bias.zero_()
    network = trace(nn.Sequential(first, nn.ReLU(), second, nn.GELU()), (2,))
    assert_bounded(network, points(network, 0))


@torch.no_grad()
@pytest.mark.parametrize("depth", [1, 6])
def test_another_order_of_the_neurons_is_tolerated(depth: int, generator: torch.Generator) -> None:
    """The same function with its hidden neurons in another order; large weights make large terms that cancel."""
    width = 64
    layers = [nn.Linear(width, width) for _ in range(depth)]
    for layer in layers:
        layer.weight.copy_(30 * torch.randn(layer.weight.shape, generator=generator) / width**0.5)
        layer.bias.copy_(torch.randn(width, generator=generator))
    others = deepcopy(layers)
    for before, after in pairwise(others):
        order = torch.randperm(width, generator=generator)
        before.weight.copy_(before.weight[order])
        before.bias.copy_(before.bias[order])
        after.weight.copy_(after.weight[:, order])
    turned = torch.arange(width - 1, -1, -1)  # the inputs too: a single layer has no hidden neurons
    others[0].weight.copy_(others[0].weight[:, turned])
    model, other = (nn.Sequential(*(m for one in chain for m in (one, nn.Softplus()))) for chain in (layers, others))
    network = trace(model, (width,))
    x = points(network, 1)
    difference = (model(x).double() - other(x[:, turned]).double()).abs()
    assert bool((difference <= rounding_tolerance(network, evaluate(network, x))).all())


class TwoNeurons(nn.Module):
    """(relu(x_0 + 1) + wrong, relu(x_1 + large)), the second times a small number; `unseen` is not in the graph."""

    def __init__(self, large: float = 1e6, wrong: float = 0.0, unseen: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.unseen = nn.Linear(2, 2), nn.Linear(2, 2), unseen
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(2))
            self.first.bias.copy_(torch.tensor([1.0, large]))
            self.second.weight.copy_(torch.diag(torch.tensor([1.0, 1e-6])))
            self.second.bias.copy_(torch.tensor([wrong, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x).relu())
        return y + (0.0 if isinstance(x, torch.fx.Proxy) else self.unseen) * torch.tensor([1.0, 0.0])


def test_a_large_neuron_does_not_hide_an_untraced_change_of_an_output_that_does_not_read_it() -> None:
    trace(TwoNeurons(), (2,))
    with pytest.raises(UnsupportedOperationError, match="differs from the model"):
        trace(TwoNeurons(unseen=0.01), (2,))


def test_a_large_neuron_does_not_hide_another_network_at_points_of_a_box() -> None:
    network, x = trace(TwoNeurons(), (2,)), torch.zeros(1, 2)
    agree(network, TwoNeurons(), x, x + 1)
    with pytest.raises(UnsupportedOperationError, match="differs from the model"):
        agree(network, TwoNeurons(wrong=0.01), x, x + 1)


@torch.no_grad()
def test_tolerances_do_not_grow_with_neurons_that_an_output_does_not_read(generator: torch.Generator) -> None:
    """Behind six layers, through which the worst cases of all neurons would grow beyond use."""

    def tolerances(scale: float) -> Tensor:
        scaled = deepcopy(layers)
        scaled[0].weight[-1] *= scale
        scaled[0].bias[-1] *= scale
        scaled[-1].weight[:, -1] /= scale
        network = trace(nn.Sequential(*[m for layer in scaled for m in (layer, nn.ReLU())][:-1]), (8,))
        return rounding_tolerance(network, evaluate(network, points(network, 2)))

    layers = [nn.Linear(8, 33), *(nn.Linear(33, 33) for _ in range(4)), nn.Linear(33, 2)]
    for layer in layers:
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / layer.in_features**0.5)
        layer.bias.copy_(torch.rand(layer.bias.shape, generator=generator))
    for layer in layers[1:]:  # the last neuron of every layer feeds the last output alone
        layer.weight[-1], layer.weight[:-1, -1] = 0.0, 0.0
        layer.weight[-1, -1] = 1.0
    plain, with_large = tolerances(1.0), tolerances(1e8)
    torch.testing.assert_close(with_large[:, 0], plain[:, 0], rtol=1e-6, atol=0.0)
    assert bool((plain > 0).all())


def test_what_the_last_layer_may_round_is_a_part_of_the_whole_tolerance(generator: torch.Generator) -> None:
    for depth in range(4):
        layers = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(depth)]
        network = trace(nn.Sequential(*layers, nn.Linear(6, 4)), (6,))
        with torch.no_grad():
            values = evaluate(network, torch.randn(20, 6, generator=generator))
        last, whole = last_rounding(network, values), rounding_tolerance(network, values)
        assert bool((last > 0).all())
        assert bool((last <= whole).all())
