"""ConvHuge: five convolutions, one hidden fully connected layer, BatchNorm before each activation for training."""

from __future__ import annotations

from lipgraft.models.classifier import Layers, ModelSpec, network
from lipgraft.models.deep_cnn import deep_cnn

CONVOLUTIONS = ((64, 1), (64, 1), (128, 2), (128, 1), (128, 1))  # (channels, stride); all 3x3 with padding 1
HIDDEN = 512


@network("cnn7", batchnorm=True)  # the name that certified training gave it
@network("conv-huge", batchnorm=True)
def conv_huge(spec: ModelSpec) -> Layers:
    """Conv(64,3,1,1) twice, Conv(128,3,2,1), Conv(128,3,1,1) twice, FC512, FC classes. 229,888 neurons on CIFAR-10."""
    return deep_cnn(spec, ((channels, 3, stride) for channels, stride in CONVOLUTIONS), HIDDEN)
