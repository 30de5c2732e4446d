"""A data set in memory: whole, as uint8 tensors on one device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.data.catalogue import Augment
from lipgraft.errors import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """x_train, x_test: (N, H, W, C) uint8; y_train, y_test: (N,) int64; mean, std: per channel, for `Normalise`.

    classes: the names of the classes. augment: what training applies. val_size: how many of the last training images
    are held out for validation.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    augment: Augment
    val_size: int

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image as a network sees it."""
        height, width, channels = self.x_train.shape[1:]
        return channels, height, width

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        counts = f"{len(self.x_train):,} training and {len(self.x_test):,} test images"
        return f"<Dataset {self.name}: {counts} of {shape} in {len(self.classes)} classes>"

    def split(self) -> tuple[Tensor, Tensor]:
        """The indices of the training and of the validation images: the last `val_size` are held out."""
        count = len(self.x_train)
        if count <= self.val_size:
            raise DataError(f"{self.name} has {count} training images, too few to hold out {self.val_size} of them.")
        indices = torch.arange(count, device=self.x_train.device)
        return indices[: count - self.val_size], indices[count - self.val_size :]

    def held_out(self) -> Dataset:
        """The same data set with the validation images in place of the test images."""
        _, chosen = self.split()
        return replace(self, x_test=self.x_train[chosen], y_test=self.y_train[chosen])

    def to(self, device: torch.device | str) -> Dataset:
        """The same data set on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("x_train", "y_train", "x_test", "y_test")}
        return replace(self, **moved)


def images(x: Tensor) -> Tensor:
    """(N, H, W, C) uint8 pixels -> (N, C, H, W) float32 in [0, 1], on the same device.

    Examples:
        >>> import lipgraft as lg
        >>> data = lg.data.load("digits")
        >>> x = lg.data.images(data.x_test[:20])
        >>> x.shape, float(x.min()), float(x.max())
        (torch.Size([20, 1, 8, 8]), 0.0, 1.0)
    """
    if x.dtype != torch.uint8:
        raise DataError(f"images() turns uint8 pixels into floats, got {x.dtype}; floats in [0, 1] need no conversion.")
    return x.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255.0)
