"""CNN5 of the literature on certified training: three convolutions, one hidden fully connected layer."""

from __future__ import annotations

from lipgraft.models.classifier import Layers, ModelSpec, network
from lipgraft.models.deep_cnn import deep_cnn

CONVOLUTIONS = ((64, 3, 1), (64, 4, 2), (128, 4, 2))  # (channels, kernel, stride)
HIDDEN = 512


@network("cnn5", batchnorm=True)
def cnn5(spec: ModelSpec) -> Layers:
    """Conv(64,3,1,1), Conv(64,4,2,1), Conv(128,4,2,1), FC512, FC classes. 90,624 neurons on CIFAR-10."""
    return deep_cnn(spec, CONVOLUTIONS, HIDDEN)
