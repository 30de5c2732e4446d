"""Augmentation of a whole batch on its device: no Python per image, no wait for the device, so it can be captured."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lipgraft.data.catalogue import Augment
from lipgraft.draws import for_batch


def crop_flip(x: Tensor, generator: torch.Generator, *, pad: int = 4) -> Tensor:
    """A random crop of the zero-padded image, mirrored left to right with probability 1/2; the same shape.

    x: (B, C, H, W); the generator lives on x's device. Each image has its own shift, in -pad..pad on both axes.
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
    index = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]  # (B, H, W), into the flattened padded image
    padded = F.pad(x, (pad, pad, pad, pad)).flatten(2)
    return padded.gather(2, index.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)


def unchanged(x: Tensor, generator: torch.Generator, *, pad: int = 0) -> Tensor:
    """No augmentation; draws nothing from the generator."""
    return x


AUGMENT: dict[Augment, Callable[..., Tensor]] = {"none": unchanged, "crop-flip": crop_flip}
