"""ResNet4B: a convolution, four residual blocks, one hidden fully connected layer; no BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn

from lipgraft.models.classifier import Layers, ModelSpec, network
from lipgraft.models.layers import ACTIVATIONS, conv_size

BLOCKS = ((16, 32, 2), (32, 32, 1), (32, 32, 2), (32, 32, 1))  # (channels in, channels out, stride)


class Block(nn.Module):
    """act2(conv2(act1(conv1(x))) + shortcut(x)); the shortcut is a 1x1 convolution when the shape changes."""

    def __init__(self, channels: int, out: int, stride: int, activation: str) -> None:
        super().__init__()
        act = ACTIVATIONS[activation]
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1)
        self.act1 = act()
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        changes = stride != 1 or channels != out
        self.shortcut = nn.Conv2d(channels, out, 1, stride=stride) if changes else nn.Identity()
        self.act2 = act()

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, channels, H, W) -> (B, out, ceil(H / stride), ceil(W / stride))."""
        y: Tensor = self.act2(self.conv2(self.act1(self.conv1(x))) + self.shortcut(x))
        return y


@network("resnet4b")
def resnet4b(spec: ModelSpec) -> Layers:
    """Conv(16,3,2,1), four blocks, FC100, FC classes. 14,436 neurons on CIFAR-10."""
    channels, *sides = spec.input_shape
    for stride in (2, *(stride for _, _, stride in BLOCKS)):
        sides = [conv_size(side, 3, stride, 1) for side in sides]
    act = ACTIVATIONS[spec.activation]
    blocks = {f"block{i}": Block(*block, spec.activation) for i, block in enumerate(BLOCKS, start=1)}
    return {
        "conv1": nn.Conv2d(channels, BLOCKS[0][0], 3, stride=2, padding=1),
        "act1": act(),
        **blocks,
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(BLOCKS[-1][1] * sides[0] * sides[1], 100),
        "act2": act(),
        "fc2": nn.Linear(100, spec.classes),
    }
