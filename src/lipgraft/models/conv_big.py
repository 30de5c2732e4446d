"""ConvBig: four convolutions, two hidden fully connected layers."""

from __future__ import annotations

from torch import nn

from lipgraft.models.classifier import Layers, ModelSpec, network
from lipgraft.models.layers import ACTIVATIONS


@network("conv-big")
def conv_big(spec: ModelSpec) -> Layers:
    """Conv(32,3,1,1), Conv(32,4,2,1), Conv(64,3,1,1), Conv(64,4,2,1), FC512, FC512, FC classes.

    62,464 neurons on CIFAR-10 and SVHN, 48,064 on MNIST.
    """
    channels, height, width = spec.input_shape
    act = ACTIVATIONS[spec.activation]
    return {
        "conv1": nn.Conv2d(channels, 32, 3, padding=1),
        "act1": act(),
        "conv2": nn.Conv2d(32, 32, 4, stride=2, padding=1),
        "act2": act(),
        "conv3": nn.Conv2d(32, 64, 3, padding=1),
        "act3": act(),
        "conv4": nn.Conv2d(64, 64, 4, stride=2, padding=1),
        "act4": act(),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(64 * (height // 4) * (width // 4), 512),
        "act5": act(),
        "fc2": nn.Linear(512, 512),
        "act6": act(),
        "fc3": nn.Linear(512, spec.classes),
    }
