"""Convolutions, then one hidden fully connected layer, with BatchNorm before each activation on request."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from lipgraft.models.classifier import Layers, ModelSpec
from lipgraft.models.layers import ACTIVATIONS, conv_size


def deep_cnn(spec: ModelSpec, convolutions: Iterable[tuple[int, int, int]], hidden: int) -> Layers:
    """convolutions: (channels, kernel, stride) of each, all with padding 1; hidden: neurons of the hidden layer.

    BatchNorm (spec.batchnorm) is for training; `fold_batchnorm` removes it before scoring and certification.
    """
    channels, height, width = spec.input_shape
    act = ACTIVATIONS[spec.activation]
    layers: Layers = {}
    last = 1
    for out, kernel, stride in convolutions:
        layers[f"conv{last}"] = nn.Conv2d(channels, out, kernel, stride=stride, padding=1)
        if spec.batchnorm:
            layers[f"bn{last}"] = nn.BatchNorm2d(out)
        layers[f"act{last}"] = act()
        channels, height, width = out, conv_size(height, kernel, stride, 1), conv_size(width, kernel, stride, 1)
        last += 1
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(channels * height * width, hidden)
    if spec.batchnorm:
        layers[f"bn{last}"] = nn.BatchNorm1d(hidden)
    layers[f"act{last}"] = act()
    layers["fc2"] = nn.Linear(hidden, spec.classes)
    return layers
