"""A data set by name."""

from __future__ import annotations

import os

import torch

from lipgraft.data.catalogue import entry
from lipgraft.data.dataset import Dataset
from lipgraft.data.download import ensure
from lipgraft.data.location import data_root
from lipgraft.data.readers import READERS


def load(name: str, root: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """The data set as uint8 tensors on the CPU.

    name: digits, mnist, fashion-mnist, svhn, cifar10 or cifar100. root: the folder in torchvision's layout; by default
    LIPGRAFT_DATA, else the user's cache directory. Files that are missing are downloaded and their checksums compared.
    """
    facts, folder = entry(name), data_root(root)
    ensure(facts, folder, download=download)
    arrays = READERS[name](facts, folder)
    return Dataset(
        name=name,
        x_train=torch.from_numpy(arrays.x_train),
        y_train=torch.from_numpy(arrays.y_train),
        x_test=torch.from_numpy(arrays.x_test),
        y_test=torch.from_numpy(arrays.y_test),
        mean=facts.mean,
        std=facts.std,
        classes=arrays.names or facts.names,
        augment=facts.augment,
        val_size=facts.val_size,
    )
