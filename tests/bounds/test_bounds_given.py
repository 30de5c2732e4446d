"""What the caller may give: known layers, a specification, a dtype, a module or a graph; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bounds_cases import SMALL, assert_same, random_box, small_cnn
from lipgraft.bounds import METHODS, AlphaSettings, Bounds, bound
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


def dense() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


LOWER, UPPER = torch.full((2, 4), 0.25), torch.full((2, 4), 0.5)
ZEROS = torch.zeros(2, 6)


def test_arrays_are_taken_for_boxes_specifications_and_layers() -> None:
    model, C = dense(), np.array([[1, -1]])
    expected = bound(model, Box(LOWER, UPPER), C=torch.tensor([[1.0, -1.0]]), layers={"1": (ZEROS - 4, ZEROS + 4)})
    arrays = {"1": ((ZEROS - 4).numpy(), (ZEROS + 4).numpy())}
    got = bound(model, Box(LOWER.numpy(), UPPER.numpy()), C=C, layers=arrays)
    assert torch.equal(got.lower, expected.lower)
    assert torch.equal(got.upper, expected.upper)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.bfloat16)], ids=str)
def test_a_box_of_two_types_has_the_finer_one(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    box = Box(LOWER.to(dtypes[0]), UPPER.to(dtypes[1]))
    assert box.lower.dtype == box.upper.dtype == torch.float64
    assert bound(dense(), box).lower.dtype == torch.float64


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "integer box": (lambda: Box(LOWER.long(), UPPER.long()), r"ends of a box must be floats, got torch.int64; use"),
    "boolean box": (lambda: Box(LOWER.bool(), UPPER.bool()), "ends of a box must be floats, got torch.bool"),
    "words": (lambda: Box("low", "high"), "ends of a box must be floats"),
    "two shapes": (lambda: Box(LOWER, UPPER[:1]), r"two ends of one shape, got \(2, 4\) and \(1, 4\)"),
    "no box": (lambda: bound(dense(), (LOWER, UPPER)), r"must be a lipgraft.Box, got a tuple; make one"),
    "neurons": (lambda: with_box(neurons="al"), "unknown choice of neurons 'al'"),
    "alpha": (lambda: with_box(alpha={"lr": 1.0}), r"alpha must be AlphaSettings\(\.\.\.\), got a dict"),
    "complex C": (lambda: with_box(C=torch.ones(1, 2, dtype=torch.complex64)), "C must be real"),
    "C in words": (lambda: with_box(C="ones"), "C must be"),
    "half a layer": (lambda: with_box(layers={"1": ZEROS[0]}), r"must be a pair \(lower, upper\), got a Tensor"),
    "shape": (lambda: with_box(layers={"1": (ZEROS[:1], ZEROS)}), r"must have shape \(2, 6\) each, got \(1, 6\)"),
    "crossed": (lambda: with_box(layers={"1": (ZEROS + 1, ZEROS)}), "contradict each other: .* for 12 neurons"),
}


def with_box(**arguments: Any) -> Bounds:
    return bound(dense(), Box(LOWER, UPPER), **arguments)


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_bounded_is_refused_with_a_sentence(kind: str) -> None:
    make, words = WRONG[kind]
    with pytest.raises(SettingsError, match=words):
        make()


def test_layers_of_a_point_that_rounding_has_crossed_are_taken() -> None:
    crossed = {"1": (ZEROS + 1e-6, ZEROS)}
    assert bool(with_box(layers=crossed).lower.isfinite().all())


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
