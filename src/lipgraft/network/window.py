"""Windows: where the coefficients of a neuron's row live.

A row is a linear function of some node's values. A neuron of a convolution sees only a window of an earlier layer, so
its row needs coefficients on that window alone. The window of the target neuron at grid place p starts at
p * stride + offset and has a fixed size.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """size: (rows, columns); origin of the window of place p: p * stride + offset."""

    size: Pair
    stride: Pair
    offset: Pair

    def area(self) -> int:
        return self.size[0] * self.size[1]

    def union(self, other: Window) -> Window | None:
        """The smallest window that holds both, or None when they move at different speeds."""
        if self.stride != other.stride:
            return None
        low = [min(a, b) for a, b in zip(self.offset, other.offset, strict=True)]
        high = [max(a + n, b + m) for a, n, b, m in zip(self.offset, self.size, other.offset, other.size, strict=True)]
        return Window((high[0] - low[0], high[1] - low[1]), self.stride, (low[0], low[1]))


POINT = Window((1, 1), (1, 1), (0, 0))
"""The window of a neuron on its own layer."""


def channels_last(block: Tensor) -> bool:
    """Whether a block (..., C, H, W) keeps its channels side by side in memory, as some convolutions leave it."""
    return block.ndim > 3 and block.shape[-3] > 1 and block.stride(-3) == 1 and block.stride(-1) == block.shape[-3]
