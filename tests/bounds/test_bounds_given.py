"""What the caller may give: known layers, a specification, a dtype, a module or a graph; and what is refused."""

from __future__ import annotations

import pytest
import torch

from bounds_cases import SMALL, assert_same, random_box, small_cnn
from lipgraft.bounds import METHODS, AlphaSettings, bound
from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.network import trace

FEW = AlphaSettings(iterations=3)


@pytest.mark.parametrize("method", METHODS)
def test_given_layers_are_taken_as_they_are(method: str, generator: torch.Generator) -> None:
    network = trace(small_cnn("relu", generator), SMALL)
    box = random_box(SMALL, 2, generator, 0.05)
    first, second, third = (node.name for _, node in network.activations())
    own = bound(network, box, method, alpha=FEW, dtype=torch.float64)
    lower, upper = own.layers[second]
    wider = {second: (lower - 1.0, upper + 1.0)}
    got = bound(network, box, method, alpha=FEW, dtype=torch.float64, layers=wider)
    torch.testing.assert_close(got.layers[second], wider[second], rtol=0, atol=0)
    torch.testing.assert_close(got.layers[first], own.layers[first], rtol=1e-8, atol=1e-8)
    assert (got.layers[third][0] < own.layers[third][0]).any(), "what follows must be computed from the given layer"
    assert (got.upper - got.lower).sum() > (own.upper - own.lower).sum()


@pytest.mark.parametrize("method", METHODS)
def test_giving_a_network_its_own_layers_changes_nothing(method: str, generator: torch.Generator) -> None:
    network = trace(small_cnn("grafted tanh", generator), SMALL)
    box = random_box(SMALL, 2, generator, 0.05)
    own = bound(network, box, method, alpha=FEW, dtype=torch.float64)
    assert_same(bound(network, box, method, alpha=FEW, dtype=torch.float64, layers=own.layers), own)


def test_given_layers_of_another_dtype_are_converted(generator: torch.Generator) -> None:
    network, box = trace(small_cnn("relu", generator), SMALL), random_box(SMALL, 2, generator, 0.05, torch.float32)
    single = bound(network, box, "crown")
    double = bound(network, box, "crown", layers=single.layers, dtype=torch.float64)
    assert double.lower.dtype == torch.float64
    torch.testing.assert_close(double.lower, single.lower.double(), rtol=1e-4, atol=1e-4)


def test_a_layer_that_the_network_does_not_have_is_refused(generator: torch.Generator) -> None:
    box = random_box(SMALL, 1, generator, 0.05, torch.float32)
    with pytest.raises(SettingsError, match="'typo'"):
        bound(small_cnn("relu", generator), box, layers={"typo": (torch.zeros(1, 3, 6, 6), torch.ones(1, 3, 6, 6))})


@pytest.mark.parametrize("method", METHODS)
def test_a_shared_specification_equals_one_for_each_image(method: str, generator: torch.Generator) -> None:
    network = trace(small_cnn("relu", generator), SMALL)
    box = random_box(SMALL, 3, generator, 0.05)
    C = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    shared = bound(network, box, method, C, alpha=FEW, dtype=torch.float64)
    each = bound(network, box, method, C.expand(3, -1, -1).clone(), alpha=FEW, dtype=torch.float64)
    assert shared.lower.shape == (3, 5)
    assert_same(shared, each)


@pytest.mark.parametrize("method", METHODS)
def test_the_identity_is_the_default_specification_and_a_negative_one_swaps_the_ends(
    method: str, generator: torch.Generator
) -> None:
    network = trace(small_cnn("relu", generator), SMALL)
    box = random_box(SMALL, 2, generator, 0.05)
    eye = torch.eye(4, dtype=torch.float64)
    plain, positive, negative = (
        bound(network, box, method, C, alpha=FEW, dtype=torch.float64) for C in (None, eye, -eye)
    )
    assert_same(positive, plain)
    torch.testing.assert_close(negative.lower, -plain.upper, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(negative.upper, -plain.lower, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(4,), (3, 5), (3, 2, 4), (2, 3, 5), (1, 1, 1, 4)])
def test_a_specification_of_the_wrong_shape_is_refused(shape: tuple[int, ...], generator: torch.Generator) -> None:
    with pytest.raises(SettingsError, match=r"C must be \(S, 4\) or \(2, S, 4\)"):
        bound(small_cnn("relu", generator), random_box(SMALL, 2, generator, 0.1, torch.float32), C=torch.zeros(shape))


def test_an_unknown_method_and_a_box_of_another_shape_are_refused(generator: torch.Generator) -> None:
    model, box = small_cnn("relu", generator), random_box(SMALL, 1, generator, 0.1, torch.float32)
    with pytest.raises(SettingsError, match="Did you mean 'crown'"):
        bound(model, box, "crwon")
    with pytest.raises(SettingsError, match=r"\(1, 5, 6\)"):
        bound(trace(model, SMALL), Box(torch.zeros(1, 1, 5, 6), torch.ones(1, 1, 5, 6)))


@pytest.mark.parametrize("method", METHODS)
def test_float64_on_request_agrees_with_float32(method: str, generator: torch.Generator) -> None:
    model, box = small_cnn("grafted relu", generator), random_box(SMALL, 2, generator, 0.05, torch.float32)
    single, double = bound(model, box, method, alpha=FEW), bound(model, box, method, alpha=FEW, dtype=torch.float64)
    assert single.lower.dtype == torch.float32
    assert double.lower.dtype == double.layers["1"][0].dtype == torch.float64
    torch.testing.assert_close(single.lower.double(), double.lower, rtol=1e-4, atol=1e-4)


def test_a_module_and_its_graph_have_the_same_bounds_and_neither_is_changed(generator: torch.Generator) -> None:
    model, box = small_cnn("relu", generator).train(), random_box(SMALL, 2, generator, 0.05, torch.float32)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    assert_same(bound(model, box, "crown"), bound(trace(model, SMALL), box, "crown"), tolerance=0.0)
    assert model.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
