"""The quickstart's network: small enough to train and certify on a CPU in seconds."""

from __future__ import annotations

from torch import nn

from lipgraft.models.classifier import Layers, ModelSpec, network
from lipgraft.models.layers import ACTIVATIONS


@network("digits-cnn")
def digits_cnn(spec: ModelSpec) -> Layers:
    """Conv(16,3,1,1), Conv(32,4,2,1), FC100, FC classes. 1,636 neurons on the 8x8 digits."""
    channels, height, width = spec.input_shape
    act = ACTIVATIONS[spec.activation]
    return {
        "conv1": nn.Conv2d(channels, 16, 3, padding=1),
        "act1": act(),
        "conv2": nn.Conv2d(16, 32, 4, stride=2, padding=1),
        "act2": act(),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(32 * (height // 2) * (width // 2), 100),
        "act3": act(),
        "fc2": nn.Linear(100, spec.classes),
    }
