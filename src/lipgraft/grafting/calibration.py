"""The images over which neurons are scored."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.data import Dataset, images
from lipgraft.errors import SettingsError

# (network, data set): how many training images the paper scores with.
CALIBRATION_SIZES = {
    ("conv-big", "mnist"): 4000,
    ("cnn-b", "cifar10"): 4000,
    ("conv-big", "svhn"): 3000,
    ("conv-big", "cifar10"): 3000,
    ("resnet4b", "cifar10"): 3000,
    ("conv-huge", "cifar10"): 2000,
}
DEFAULT_SIZE = 3000


def calibration_size(network: str, dataset: str) -> int:
    """The paper's number of calibration images, or 3000 where the paper has none."""
    return CALIBRATION_SIZES.get((network, dataset), DEFAULT_SIZE)


def calibration_set(data: Dataset, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """`count` random training images, not augmented, and their labels: (count, C, H, W) in [0, 1] and (count,).

    Drawn without repetition from the images that training sees (not the held-out ones); all of them when there are
    fewer. The draw does not depend on the device.
    """
    if count < 1:
        raise SettingsError(f"a calibration set needs at least 1 image, got count {count}.")
    train, _ = data.split()
    drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:count]
    rows = train[drawn.to(train.device)]
    return images(data.x_train[rows]), data.y_train[rows]
