"""A network by name: named layers in a row, behind the normalisation layer of its data set."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from lipgraft.data import Dataset, entry
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.models.layers import ACTIVATIONS, Normalise


@dataclass(frozen=True)
class ModelSpec:
    """name, dataset, activation, batchnorm: as `build` takes them; input_shape: (C, H, W); classes: how many."""

    name: str
    dataset: str
    activation: str
    batchnorm: bool
    input_shape: tuple[int, int, int]
    classes: int


Layers = dict[str, nn.Module]
NETWORKS: dict[str, Callable[[ModelSpec], Layers]] = {}
HAS_BATCHNORM: set[str] = set()


def network(name: str, *, batchnorm: bool = False) -> Callable[[Callable[[ModelSpec], Layers]], Callable[..., Layers]]:
    """Register a function that makes a network's layers, in order, by name. batchnorm: it has a form with BatchNorm."""

    def register(make: Callable[[ModelSpec], Layers]) -> Callable[[ModelSpec], Layers]:
        NETWORKS[name] = make
        if batchnorm:
            HAS_BATCHNORM.add(name)
        return make

    return register


SIGMOID_GAIN = 2.5
"""A sigmoid's slope is at most 1/4: with PyTorch's initialisation the signal shrinks to a seventh in every layer, and
networks of four layers do not learn at all. Larger gains (4) saturate, and learn more slowly."""


class Classifier(nn.Sequential):
    """x (B, C, H, W), raw pixels in [0, 1] -> logits (B, classes)."""

    spec: ModelSpec

    def __init__(self, spec: ModelSpec, layers: Layers, normalise: Normalise) -> None:
        super().__init__(OrderedDict(normalise=normalise, **layers))
        self.spec = spec


def build(
    name: str,
    dataset: str | Dataset = "cifar10",
    *,
    activation: str = "relu",
    batchnorm: bool | None = None,
    seed: int | None = None,
) -> Classifier:
    """A network with PyTorch's default initialisation (but see SIGMOID_GAIN), on the CPU.

    name: cnn-b, conv-big, conv-huge (also called cnn7), cnn5, resnet4b or digits-cnn. dataset: gives the input's shape,
    the classes and the normalisation; by name, or a data set of your own. activation: a name of
    `lipgraft.activations.KINDS`. batchnorm: None means that conv-huge and cnn5 have it and no other network does. seed:
    the same seed gives the same weights on every machine and leaves the global random state untouched.

    Examples:
        >>> import lipgraft as lg
        >>> model = lg.models.build("cnn-b", "mnist", seed=0)
        >>> model.spec.input_shape
        (1, 28, 28)
    """
    if name not in NETWORKS:
        raise SettingsError(unknown_name("network", name, list(NETWORKS)))
    if activation not in ACTIVATIONS:
        raise SettingsError(unknown_name("activation", activation, list(ACTIVATIONS)))
    if batchnorm and name not in HAS_BATCHNORM:
        raise SettingsError(f"{name} has no BatchNorm; only {', '.join(sorted(HAS_BATCHNORM))} can have it.")
    facts = dataset if isinstance(dataset, Dataset) else entry(dataset)
    classes = len(facts.classes) if isinstance(facts, Dataset) else facts.classes
    spec = ModelSpec(
        name=name,
        dataset=facts.name,
        activation=activation,
        batchnorm=name in HAS_BATCHNORM if batchnorm is None else batchnorm,
        input_shape=facts.input_shape,
        classes=classes,
    )
    # On the CPU whatever the default device is, so that a seed means the same weights everywhere.
    with torch.device("cpu"), torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reach the GPUs' generators
        model = Classifier(spec, NETWORKS[name](spec), Normalise(facts.mean, facts.std))
        if activation == "sigmoid":
            _spread(model, SIGMOID_GAIN)
        return model


def _spread(model: nn.Module, gain: float) -> None:
    """Xavier's initialisation with this gain; biases are zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(module.weight, gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
