"""CNN-B: two convolutions, one hidden fully connected layer."""

from __future__ import annotations

from torch import nn

from lipgraft.models.classifier import Layers, ModelSpec, network
from lipgraft.models.layers import ACTIVATIONS, conv_size


@network("cnn-b")
def cnn_b(spec: ModelSpec) -> Layers:
    """Pad(1, 2, 1, 2), Conv(32,5,2,0), Conv(128,4,2,1), FC250, FC classes. 16,634 neurons on CIFAR-10."""
    channels, *sides = spec.input_shape
    height, width = (conv_size(conv_size(side + 3, 5, 2, 0), 4, 2, 1) for side in sides)
    act = ACTIVATIONS[spec.activation]
    return {
        "pad": nn.ZeroPad2d((1, 2, 1, 2)),
        "conv1": nn.Conv2d(channels, 32, 5, stride=2),
        "act1": act(),
        "conv2": nn.Conv2d(32, 128, 4, stride=2, padding=1),
        "act2": act(),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(128 * height * width, 250),
        "act3": act(),
        "fc2": nn.Linear(250, spec.classes),
    }
