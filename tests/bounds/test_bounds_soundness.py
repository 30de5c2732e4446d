"""Bounds hold: every method, activation and architecture, on random boxes, a thousand points inside and the corners."""

from __future__ import annotations

import importlib

import pytest
import torch

from bounds_cases import ACTIVATIONS, assert_sound, classifier, random_box, reach
from lipgraft.bounds import METHODS, AlphaSettings, bound
from lipgraft.box import Box

FEW = AlphaSettings(iterations=2)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """ConvHuge with an eighth of its channels: the same layers, at a size that a CPU bounds at once."""
    conv_huge = importlib.import_module("lipgraft.models.conv_huge")
    monkeypatch.setattr(conv_huge, "CONVOLUTIONS", tuple((n // 8, stride) for n, stride in conv_huge.CONVOLUTIONS))
    monkeypatch.setattr(conv_huge, "HIDDEN", 32)


# Every activation on one architecture, and on the others one of each sort: a kink, a slope below zero, an S, neither
# monotone nor convex, two kinks, lines beside kinks and beside an S.
SORTS = ["relu", "v-shaped", "sigmoid", "gelu", "hardtanh", "grafted relu", "grafted tanh"]
CASES = [("cnn-b", activation) for activation in ACTIVATIONS]
CASES += [(name, activation) for name in ("conv-huge", "resnet4b") for activation in SORTS]
# conv-big is as long as conv-huge, of layers as cnn-b has them.
CASES += [("conv-big", activation) for activation in ("relu", "gelu", "grafted relu")]


@pytest.mark.parametrize(("name", "activation"), CASES)
@pytest.mark.usefixtures("narrow")
def test_bounds_hold_for_every_method(name: str, activation: str, generator: torch.Generator) -> None:
    network = classifier(name, activation)
    box = random_box(network.input_shape, 1, generator, 0.01 if name == "conv-big" else 0.05)
    reached = reach(network, box, generator)
    layers = None
    for method in METHODS:
        # The bounds of the layers are crown's; alpha-crown need not find them again.
        bounds = bound(network, box, method, alpha=FEW, layers=layers if method == "alpha-crown" else None)
        layers = bounds.layers if method == "crown" else None
        assert_sound(network, reached, bounds)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("activation", ["relu", "tanh", "grafted relu"])
def test_bounds_hold_with_an_eps_for_each_image_and_on_boxes_of_zero_width(
    method: str, activation: str, generator: torch.Generator
) -> None:
    network = classifier("digits-cnn", activation)
    box = random_box(network.input_shape, 3, generator, torch.tensor([0.0, 0.01, 0.2]))
    assert torch.equal(box.lower[0], box.upper[0])
    reached = reach(network, box, generator)
    C = torch.randn(3, 4, 10, generator=generator, dtype=torch.float64)
    assert_sound(network, reached, bound(network, box, method, alpha=FEW))
    assert_sound(network, reached, bound(network, box, method, C, alpha=FEW), C)


@pytest.mark.parametrize("method", METHODS)
def test_bounds_hold_on_boxes_with_sides_of_different_length(method: str, generator: torch.Generator) -> None:
    network = classifier("digits-cnn", "relu")
    lower = torch.randn(2, *network.input_shape, generator=generator, dtype=torch.float64)
    width = torch.rand(lower.shape, generator=generator, dtype=torch.float64).square() * 0.5
    width[:, :, ::2] = 0  # some pixels are fixed
    box = Box(lower, lower + width)
    assert_sound(network, reach(network, box, generator), bound(network, box, method, alpha=FEW))


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("cnn-b", ["ibp", "crown-ibp"]),
        ("resnet4b", ["ibp", "crown-ibp"]),
        ("conv-big", ["crown-ibp"]),
        ("conv-huge", ["ibp", "crown-ibp"]),
    ],
)
def test_bounds_hold_at_full_size_in_float32(name: str, methods: list[str], generator: torch.Generator) -> None:
    network = classifier(name, "relu", dataset="cifar10").to(dtype=torch.float32)
    box = random_box(network.input_shape, 1, generator, 1 / 255, torch.float32)
    reached = reach(network, box, generator, count=60)
    for method in methods:
        assert_sound(network, reached, bound(network, box, method))
