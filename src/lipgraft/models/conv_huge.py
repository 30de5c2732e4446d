"""ConvHuge: five convolutions, one hidden fully connected layer, BatchNorm before each activation for training."""

from __future__ import annotations

from torch import nn

from lipgraft.models.classifier import Layers, ModelSpec, network
from lipgraft.models.layers import ACTIVATIONS, conv_size

CONVOLUTIONS = ((64, 1), (64, 1), (128, 2), (128, 1), (128, 1))  # (channels, stride); all 3x3 with padding 1
HIDDEN = 512


@network("conv-huge", batchnorm=True)
def conv_huge(spec: ModelSpec) -> Layers:
    """Conv(64,3,1,1) twice, Conv(128,3,2,1), Conv(128,3,1,1) twice, FC512, FC classes. 229,888 neurons on CIFAR-10.

    BatchNorm (spec.batchnorm) is for training; `fold_batchnorm` removes it before scoring and certification.
    """
    channels, height, width = spec.input_shape
    act = ACTIVATIONS[spec.activation]
    layers: Layers = {}
    for i, (out, stride) in enumerate(CONVOLUTIONS, start=1):
        layers[f"conv{i}"] = nn.Conv2d(channels, out, 3, stride=stride, padding=1)
        if spec.batchnorm:
            layers[f"bn{i}"] = nn.BatchNorm2d(out)
        layers[f"act{i}"] = act()
        channels, height, width = out, conv_size(height, 3, stride, 1), conv_size(width, 3, stride, 1)
    last = len(CONVOLUTIONS) + 1
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(channels * height * width, HIDDEN)
    if spec.batchnorm:
        layers[f"bn{last}"] = nn.BatchNorm1d(HIDDEN)
    layers[f"act{last}"] = act()
    layers["fc2"] = nn.Linear(HIDDEN, spec.classes)
    return layers
