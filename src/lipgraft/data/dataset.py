"""A data set in memory: whole, as uint8 tensors on one device; its images as floats, and their augmentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lipgraft.data.catalogue import Augment
from lipgraft.draws import for_batch
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
        if count == 0:
            raise DataError(
                f"{self.name} has no training images, which training and grafting need; add x_train and y_train."
            )
        if count <= self.val_size:
            raise DataError(f"{self.name} has {count} training images, too few to hold out {self.val_size} of them.")
        indices = torch.arange(count, device=self.x_train.device)
        return indices[: count - self.val_size], indices[count - self.val_size :]

    def holding_out(self, count: int | None) -> Dataset:
        """The same data set with so many of its last training images held out; None: as it is."""
        return self if count is None else replace(self, val_size=count)

    def held_out(self) -> Dataset:
        """The same data set with the validation images in place of the test images."""
        _, chosen = self.split()
        if len(chosen) == 0:
            raise DataError(f"no training images of {self.name} are held out, so there is nothing to measure on.")
        return replace(self, x_test=self.x_train[chosen], y_test=self.y_train[chosen])

    def to(self, device: torch.device | str) -> Dataset:
        """The same data set on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("x_train", "y_train", "x_test", "y_test")}
        return replace(self, **moved)


def check_dataset(data: object) -> None:
    """Refuse what is no data set, such as the name of one."""
    if not isinstance(data, Dataset):
        given = repr(data) if isinstance(data, str) else f"a {type(data).__name__}"
        raise DataError(
            f"the data must be a lipgraft.data.Dataset, got {given}; lipgraft.data.load(name) reads one, and "
            "lipgraft.data.from_arrays makes one of arrays."
        )


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


def crop_flip(x: Tensor, generator: torch.Generator, *, pad: int = 4, edge: bool = False) -> Tensor:
    """A random crop of the padded image, mirrored left to right with probability 1/2; the same shape.

    x: (B, C, H, W); the generator lives on x's device. Each image has its own shift, in -pad..pad on both axes. edge:
    what comes into view repeats the nearest pixel; otherwise it is 0.
    """
    batch, _, height, width = x.shape

    def draw(below: int) -> Tensor:
        def rows(count: int) -> Tensor:
            return torch.randint(0, below, (count, 1), generator=generator, device=x.device)

        return for_batch(rows, batch, generator)

    top, left, flip = draw(2 * pad + 1), draw(2 * pad + 1), draw(2)
    rows = top + torch.arange(height, device=x.device)  # (B, H), positions in the padded image
    columns = torch.arange(width, device=x.device)
    columns = left + torch.where(flip == 1, width - 1 - columns, columns)  # (B, W)
    if edge:
        rows, columns, across = (rows - pad).clamp(0, height - 1), (columns - pad).clamp(0, width - 1), width
        padded = x.flatten(2)
    else:
        padded, across = F.pad(x, (pad, pad, pad, pad)).flatten(2), width + 2 * pad
    index = rows[:, :, None] * across + columns[:, None, :]  # (B, H, W), into the flattened image
    return padded.gather(2, index.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)


def unchanged(x: Tensor, generator: torch.Generator, *, pad: int = 0, edge: bool = False) -> Tensor:
    """No augmentation; draws nothing from the generator."""
    return x


AUGMENT: dict[Augment, Callable[..., Tensor]] = {"none": unchanged, "crop-flip": crop_flip}
