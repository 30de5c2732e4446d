"""Grafted networks: an all-zero mask is the original network, an all-one mask an affine function with exact bounds."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from bounds_cases import BASES, SMALL, assert_same, random_box, randomise, small_cnn, with_activation
from lipgraft import models
from lipgraft.bounds import METHODS, AlphaSettings, bound
from lipgraft.box import Box
from lipgraft.grafting import GraftedActivation
from lipgraft.network import Network, evaluate, trace

FEW = AlphaSettings(iterations=3)


def set_masks(model: nn.Module, value: bool) -> nn.Module:
    for module in model.modules():
        if isinstance(module, GraftedActivation):
            module.mask.fill_(value)
    return model


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
def test_an_all_zero_mask_gives_the_bounds_of_the_original_network(
    method: str, base: str, generator: torch.Generator
) -> None:
    grafted = set_masks(small_cnn(f"grafted {base}", generator), False)
    original = copy.deepcopy(grafted)
    for name, child in list(original.named_children()):
        if isinstance(child, GraftedActivation):
            setattr(original, name, child.base)
    box = random_box(SMALL, 2, generator, 0.05)
    got, want = (bound(model, box, method, alpha=FEW, dtype=torch.float64) for model in (grafted, original))
    assert_same(got, want)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", ["crown-ibp", "crown", "alpha-crown"])
def test_an_all_grafted_network_is_affine_and_its_bounds_are_exact(
    method: str, base: str, generator: torch.Generator
) -> None:
    network = trace(set_masks(small_cnn(f"grafted {base}", generator), True), SMALL).to(dtype=torch.float64)
    box = random_box(SMALL, 3, generator, torch.tensor([0.0, 0.05, 0.3]))
    lower, upper = exact_affine(network, box)
    got = bound(network, box, method, alpha=FEW)
    torch.testing.assert_close(got.lower, lower, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(got.upper, upper, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["cnn-b", "resnet4b"])
def test_an_all_grafted_network_of_the_paper_has_exact_bounds_in_float32(name: str, generator: torch.Generator) -> None:
    model = models.build(name, "digits", seed=0)
    shape = model.spec.input_shape
    grafted = randomise(set_masks(with_activation(model, "grafted relu", shape, generator), True), generator)
    network, box = trace(grafted, shape), random_box(shape, 2, generator, 0.1, torch.float32)
    lower, upper = exact_affine(network.to(dtype=torch.float64), box.to(dtype=torch.float64))
    got = bound(network, box, "crown")
    torch.testing.assert_close(got.lower.double(), lower, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.upper.double(), upper, rtol=1e-4, atol=1e-4)


def test_bounds_do_not_depend_on_the_lines_of_neurons_that_are_not_grafted(generator: torch.Generator) -> None:
    model, box = small_cnn("grafted relu", generator), random_box(SMALL, 2, generator, 0.05)
    before = bound(model, box, "alpha-crown", alpha=FEW, dtype=torch.float64)
    for module in model.modules():
        if isinstance(module, GraftedActivation):
            module.gamma.data[~module.mask] = 1e3
            module.omega.data[~module.mask] = -1e3
    assert_same(bound(model, box, "alpha-crown", alpha=FEW, dtype=torch.float64), before)


def exact_affine(network: Network, box: Box) -> tuple[Tensor, Tensor]:
    """The exact range of an affine network: W from autograd, then W+ l + W- u + b, (B, n)."""
    zero = torch.zeros(1, *network.input_shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: evaluate(network, x)[network.output], zero)
    W, b = jacobian.reshape(network.output_shape[0], -1), evaluate(network, zero)[network.output]
    lower, upper = box.lower.flatten(1), box.upper.flatten(1)
    plus, minus = W.clamp(min=0).T, W.clamp(max=0).T
    return lower @ plus + upper @ minus + b, upper @ plus + lower @ minus + b
