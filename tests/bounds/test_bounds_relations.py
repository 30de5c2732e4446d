"""How bounds relate to each other: between methods, between boxes, between a batch and its images."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bounds_cases import (
    BASES,
    SMALL,
    assert_no_worse,
    assert_same,
    assert_sound,
    classifier,
    random_box,
    reach,
    small_cnn,
)
from bounds_graphs import image_networks
from lipgraft.bounds import METHODS, AlphaSettings, Bounds, bound
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.refine import refine
from lipgraft.box import Box
from lipgraft.network import Network, evaluate, trace

FEW = AlphaSettings(iterations=3)
SEEDS = st.integers(0, 2**31 - 1)


# --- between methods -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [*BASES, "grafted relu", "grafted sigmoid"])
def test_alpha_crown_is_never_worse_than_crown_and_somewhere_better(
    activation: str, generator: torch.Generator
) -> None:
    network = trace(small_cnn(activation, generator), SMALL).to(dtype=torch.float64)
    box = random_box(SMALL, 4, generator, 0.1)
    crown = bound(network, box, "crown")
    alpha = bound(network, box, "alpha-crown", alpha=AlphaSettings(iterations=10))
    assert_no_worse(alpha, crown)
    assert ((alpha.upper - alpha.lower) < (crown.upper - crown.lower) - 1e-6).any()


def test_more_steps_of_alpha_crown_never_make_it_worse(generator: torch.Generator) -> None:
    network = trace(small_cnn("relu", generator), SMALL).to(dtype=torch.float64)
    box = random_box(SMALL, 2, generator, 0.1)
    found = [bound(network, box, "alpha-crown", alpha=AlphaSettings(iterations=n)) for n in (0, 2, 8)]
    assert_same(found[0], bound(network, box, "crown"))
    assert_no_worse(found[1], found[0])
    assert_no_worse(found[2], found[1])


@pytest.mark.parametrize("activation", ["relu", "tanh", "grafted relu"])
def test_optimised_layers_are_sound_and_lie_within_those_of_crown(activation: str, generator: torch.Generator) -> None:
    network = trace(small_cnn(activation, generator), SMALL).to(dtype=torch.float64)
    box = random_box(SMALL, 2, generator, 0.1)
    crown, tighter = bound(network, box, "crown"), refined(network, box)
    assert_sound(network, reach(network, box, generator), tighter)
    assert_no_worse(Bounds(crown.lower, crown.upper, tighter.layers), crown)
    widths = [sum(float((high - low).sum()) for low, high in b.layers.values()) for b in (tighter, crown)]
    assert widths[0] < widths[1]


def refined(network: Network, box: Box) -> Bounds:
    """Bounds of the output from hidden layers whose own bounds were optimised."""
    with torch.no_grad():
        intervals = refine(network, prepare(network, box).intervals, "all", AlphaSettings(iterations=4), 64)
    return bound(network, box, "alpha-crown", layers={a.name: intervals[a.inputs[0]] for _, a in network.activations()})


def test_layers_are_optimised_where_one_activation_reads_another(generator: torch.Generator) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Sigmoid(), nn.Linear(5, 2))
    network = trace(model, (3,)).to(dtype=torch.float64)
    box = random_box((3,), 4, generator, 0.3)
    tighter = refined(network, box)
    assert_sound(network, reach(network, box, generator), tighter)
    assert_no_worse(tighter, bound(network, box, "crown"))


@settings(max_examples=15)
@given(image_networks(), SEEDS)
def test_layers_of_crown_lie_within_those_of_interval_arithmetic(network: Network, seed: int) -> None:
    """Of the layers this is true, since each is an intersection; of the outputs of plain CROWN it need not be."""
    box = random_box(network.input_shape, 2, torch.Generator().manual_seed(seed), 0.1)
    loose = bound(network, box, "ibp")
    for neurons in ("needed", "all"):
        tight = bound(network, box, "crown", neurons=neurons)
        assert_no_worse(Bounds(loose.lower, loose.upper, tight.layers), loose)


# --- the size of the box ---------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(image_networks(), SEEDS, st.floats(0, 1))
def test_interval_bounds_shrink_with_the_box(network: Network, seed: int, factor: float) -> None:
    x = torch.rand(2, *network.input_shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    large, little = (bound(network, Box.linf(x, eps), "ibp") for eps in (0.2, 0.2 * factor))
    assert_no_worse(little, large)


@pytest.mark.parametrize("activation", ["relu", "tanh", "grafted relu"])
def test_crown_bounds_shrink_with_the_box_when_the_lines_stay(activation: str, generator: torch.Generator) -> None:
    """With adaptive lines a smaller box may give a worse bound; with the layers of the larger box it cannot."""
    network = trace(small_cnn(activation, generator), SMALL).to(dtype=torch.float64)
    x = torch.rand(3, *SMALL, generator=generator, dtype=torch.float64)
    large = bound(network, Box.linf(x, 0.1), "crown")
    for eps in (0.09, 0.05, 0.0):
        assert_no_worse(bound(network, Box.linf(x, eps), "crown", layers=large.layers), large)


@pytest.mark.parametrize("activation", [*BASES, "grafted relu", "grafted tanh"])
@pytest.mark.parametrize("method", METHODS)
def test_eps_zero_gives_the_point(method: str, activation: str, generator: torch.Generator) -> None:
    network = trace(small_cnn(activation, generator), SMALL).to(dtype=torch.float64)
    x = torch.rand(3, *SMALL, generator=generator, dtype=torch.float64)
    values = evaluate(network, x)
    layers = {node.name: (values[node.inputs[0]],) * 2 for _, node in network.activations()}
    point = Bounds(values[network.output], values[network.output], layers)
    assert_same(bound(network, Box.linf(x, 0.0), method, alpha=FEW), point)


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "grafted tanh"])
@pytest.mark.parametrize("method", METHODS)
def test_bounds_tend_to_the_point_as_eps_tends_to_zero(
    method: str, activation: str, generator: torch.Generator
) -> None:
    network = trace(small_cnn(activation, generator), SMALL).to(dtype=torch.float64)
    x = torch.rand(3, *SMALL, generator=generator, dtype=torch.float64)
    found = [bound(network, Box.linf(x, eps), method, alpha=FEW) for eps in (1e-2, 1e-4, 1e-6)]
    widths = [float((b.upper - b.lower).max()) for b in found]
    assert widths[1] < 0.05 * widths[0]
    assert widths[2] < 0.05 * widths[1]


# --- the batch -------------------------------------------------------------------------------------------------------


def part(bounds: Bounds, b: int) -> Bounds:
    layers = {name: (low[b : b + 1], high[b : b + 1]) for name, (low, high) in bounds.layers.items()}
    return Bounds(bounds.lower[b : b + 1], bounds.upper[b : b + 1], layers)


@pytest.mark.parametrize("neurons", ["needed", "all"])
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "grafted relu", "grafted tanh"])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_n_equals_n_batches_of_one(
    method: str, activation: str, neurons: str, generator: torch.Generator
) -> None:
    """Also when the images have very different numbers of unstable neurons."""
    network = trace(small_cnn(activation, generator), SMALL).to(dtype=torch.float64)
    box = random_box(SMALL, 4, generator, torch.tensor([0.0, 0.01, 0.05, 0.3]))
    C = torch.randn(4, 3, 4, generator=generator, dtype=torch.float64)
    together = bound(network, box, method, C, neurons=neurons, alpha=FEW)
    for b in range(4):
        alone = bound(network, box[b : b + 1], method, C[b : b + 1], neurons=neurons, alpha=FEW)
        assert_same(part(together, b), alone)


@settings(max_examples=15)
@given(image_networks(), SEEDS)
def test_a_batch_of_random_graphs_equals_its_images(network: Network, seed: int) -> None:
    box = random_box(network.input_shape, 3, torch.Generator().manual_seed(seed), torch.tensor([0.3, 0.02, 0.1]))
    together = bound(network, box, "crown")
    for b in range(3):
        assert_same(part(together, b), bound(network, box[b : b + 1], "crown"))


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch_gives_empty_bounds(method: str, generator: torch.Generator) -> None:
    got = bound(small_cnn("relu", generator), Box(torch.zeros(0, *SMALL), torch.zeros(0, *SMALL)), method)
    assert got.lower.shape == got.upper.shape == (0, 4)


def test_the_same_question_has_the_same_answer(generator: torch.Generator) -> None:
    network = classifier("resnet4b", "relu")
    box = random_box(network.input_shape, 1, generator, 0.02)
    first, second = (bound(network, box, "alpha-crown", alpha=FEW) for _ in range(2))
    assert_same(first, second, tolerance=0.0)
