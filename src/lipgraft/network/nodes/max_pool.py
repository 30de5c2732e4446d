"""Max pooling, until `expanded` rewrites it: nothing but grafting ever works with this node itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.nodes.node import Cache, Node, Shape


@dataclass(frozen=True, eq=False)
class MaxPool(Node):
    """The largest value of each window of an image. ceil: windows may stick out at the far ends.

    Where the weights between layers are asked for, each input of a window counts as its largest, with weight 1.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil: bool = False

    def forward(self, *inputs: Tensor) -> Tensor:
        return F.max_pool2d(inputs[0], self.kernel, self.stride, self.padding, self.dilation, self.ceil)

    def reads(self, size: int, axis: int, tap: int) -> Tensor:
        """For every window along an axis of `size` pixels, whether this tap reads a pixel and not padding."""
        first = torch.arange(self.shape[1 + axis]) * self.stride[axis] - self.padding[axis]
        place = first + tap * self.dilation[axis]
        return (place >= 0) & (place < size)

    def first_taps(self, size: int, axis: int) -> Tensor:
        """For every window along this axis, the first tap that reads a pixel."""
        reads = torch.stack([self.reads(size, axis, tap) for tap in range(self.kernel[axis])])
        if not bool(reads.any(0).all()):
            raise UnsupportedOperationError(f"windows of the max pooling {self.name!r} hold nothing but padding.")
        return reads.to(torch.int8).argmax(0)

    def linear(self, *inputs: Tensor) -> Tensor:
        """The largest weight of each window: (B, *shape of the input) -> (B, *shape)."""
        return self.forward(inputs[0].abs())

    def magnitude(self) -> MaxPool:
        return self

    def strongest(self, worth: Tensor, shape: Shape) -> Tensor:
        """At each input, the largest worth of a window that holds it: (*self.shape) -> (*shape)."""
        return self._back(worth, shape, torch.maximum)

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        """At each input, the sum over the windows that hold it: (..., *self.shape) -> (..., *shape)."""
        return self._back(rows, shape, torch.add)

    def _back(self, worth: Tensor, shape: Shape, merge: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Each tap in turn reads distinct places, so that a strided view is enough."""
        (rows, columns), (height, width) = self.shape[1:], shape[1:]
        (sy, sx), (py, px), (dy, dx) = self.stride, self.padding, self.dilation
        size = [
            max(n + p, (m - 1) * s + d * (k - 1) + 1)
            for n, p, m, s, d, k in zip(
                (height, width), (py, px), (rows, columns), self.stride, self.dilation, self.kernel, strict=True
            )
        ]
        out = worth.new_zeros(*worth.shape[:-2], *size)
        for ky in range(self.kernel[0]):
            for kx in range(self.kernel[1]):
                y, x = ky * dy, kx * dx
                place = out[..., y : y + sy * (rows - 1) + 1 : sy, x : x + sx * (columns - 1) + 1 : sx]
                place.copy_(merge(place, worth))
        return out[..., py : py + height, px : px + width]
