"""The layers that every network shares: normalisation in front, the activations by name, the sizes of convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lipgraft.activations import KINDS

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {kind.name: kind.modules[0] for kind in KINDS}


class Normalise(nn.Module):
    """x -> (x - mean) / std, per channel. The input is raw pixels in [0, 1], and so are boxes, attacks and eps."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W)."""
        return (x - self.mean) / self.std


def conv_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """The side of a convolution's output: floor((size + 2 padding - kernel) / stride) + 1."""
    return (size + 2 * padding - kernel) // stride + 1
