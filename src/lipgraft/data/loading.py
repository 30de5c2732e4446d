"""A data set by name, or of one's own."""

from __future__ import annotations

import os

import torch

from lipgraft.data.catalogue import entry
from lipgraft.data.dataset import Dataset
from lipgraft.data.files import data_root, ensure
from lipgraft.data.own import check_name, is_own, load_own
from lipgraft.data.readers import READERS


def load(name: str, root: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """The data set as uint8 tensors on the CPU.

    name: digits, mnist, fashion-mnist, svhn, cifar10 or cifar100; or your own: an .npz file with the arrays that
    `from_arrays` takes, or module:function, a function that returns them. root: the folder in torchvision's layout; by
    default LIPGRAFT_DATA, else the user's cache directory. Files that are missing are downloaded and their checksums
    compared.

    Examples:
        >>> import lipgraft as lg
        >>> lg.data.load("digits")
        <Dataset digits: 1,437 training and 360 test images of 1x8x8 in 10 classes>
    """
    check_name(name)
    if is_own(name):
        return load_own(name)
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
