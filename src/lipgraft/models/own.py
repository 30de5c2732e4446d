"""Networks of one's own beside those by name: where training starts, and whether a network fits its data."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import nn

from lipgraft.data import Dataset
from lipgraft.errors import LipgraftError, SettingsError, unknown_name
from lipgraft.models.checkpoint import ADDED_BY, load
from lipgraft.models.classifier import NETWORKS, ModelSpec, build
from lipgraft.models.fold import fold_batchnorm
from lipgraft.models.graph_model import Layer, graph_model
from lipgraft.network import call, evaluated, known_input_shape, like, normalises, trace
from lipgraft.network.nodes import Reshape
from lipgraft.source import is_source

FILES = (".safetensors", *ADDED_BY)


def is_own(name: str) -> bool:
    """Whether the name is that of a file or a function, and not of a network that lipgraft builds."""
    return name.endswith(FILES) or is_source(name)


def check_name(name: str) -> None:
    """Refuse a name that is none of the known networks, nor a file, nor a function."""
    if name not in NETWORKS and not is_own(name):
        known = unknown_name("network", name, list(NETWORKS))
        raise SettingsError(f"{known} Your own: an .onnx or .safetensors file, or module:function.")


def start(
    network: str, data: Dataset, *, activation: str = "relu", batchnorm: bool | None = None, seed: int = 0
) -> nn.Module:
    """The network that training starts from.

    network: by name, at random weights; an .onnx or .safetensors file, with its weights; or module:function, which
    makes it. activation, batchnorm: of a network by name. The same seed gives the same random weights. A network that
    cannot be traced, and so never be verified, is refused.
    """
    check_name(network)
    if network in NETWORKS:
        return build(network, data, activation=activation, batchnorm=batchnorm, seed=seed)
    if activation != "relu" or batchnorm is not None:
        raise SettingsError(f"{network} has its own layers; leave out activation and batchnorm.")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = fitting(load(network), data, network)
    trace(model, data.input_shape, check=False)  # what cannot be verified later is refused before it is trained
    return model


def fitting(model: nn.Module, data: Dataset, name: str) -> nn.Module:
    """The model, if it takes the images of the data set and tells its classes; else a SettingsError.

    A network over flat vectors of as many numbers gets a layer in front that lays the pixels out for it.
    """
    spec = getattr(model, "spec", None)
    if isinstance(spec, ModelSpec):
        made, given = (tuple(spec.input_shape), spec.classes), (data.input_shape, len(data.classes))
        if made[0] != given[0] or made[1] < given[1]:  # test images need not show every class
            raise SettingsError(
                f"{name} is a {spec.name} for {spec.dataset}, {_describe(*made)}, but {data.name} has "
                f"{_describe(*given)}; give the data set that it was trained on with --data."
            )
        return model
    pixels, shape = data.input_shape, known_input_shape(model)
    outputs = _outputs(model, pixels)
    if outputs is None and shape is not None and math.prod(shape) == math.prod(pixels):
        model = nn.Sequential(OrderedDict(pixels=Layer(Reshape, shape, {}, {}), network=model)).eval()
    check_fits(model, data, name)
    return model


def check_fits(model: nn.Module, data: Dataset, name: str) -> None:
    """Refuse a model that cannot take the images of the data set, or has fewer outputs than it has classes."""
    pixels, shape = data.input_shape, known_input_shape(model)
    outputs = _outputs(model, pixels)
    if outputs is None:
        takes = "cannot take them, or does not return a row of class scores for each"
        takes = takes if shape is None else f"takes inputs of {_times(shape)}"
        raise SettingsError(
            f"the images of {data.name} are {_times(pixels)}, but {name} {takes}; give the data set that it was made "
            "for."
        )
    if outputs < len(data.classes):
        raise SettingsError(
            f"{name} has {outputs} classes, but {data.name} has {len(data.classes)}; give the data set that it was "
            "made for."
        )


def folded(model: nn.Module, data: Dataset) -> nn.Module:
    """The model with BatchNorm folded into the layers before it; a model without any is returned as it is."""
    if isinstance(getattr(model, "spec", None), ModelSpec):
        return fold_batchnorm(model)
    return graph_model(model, data.input_shape) if normalises(model) else model


@torch.no_grad()
def _outputs(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """How many class scores the model has for an input of this shape; None if it does not take it."""
    with evaluated(model):
        try:
            out = call(model, torch.zeros(2, *shape).to(like(model)))
        except (RuntimeError, ValueError, IndexError, LipgraftError):
            return None
    return out.shape[1] if isinstance(out, torch.Tensor) and out.ndim == 2 and len(out) == 2 else None


def _describe(shape: tuple[int, ...], classes: int) -> str:
    return f"images of {_times(shape)} in {classes} classes"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
