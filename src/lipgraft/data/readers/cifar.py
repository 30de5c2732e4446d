"""CIFAR-10 and CIFAR-100: dicts in pickles, read by a reader that runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipgraft.data.catalogue import Entry
from lipgraft.data.readers.arrays import Arrays, Bytes, checked, reads
from lipgraft.data.restricted_pickle import load_arrays
from lipgraft.errors import DataError


@reads("cifar10")
def read_cifar10(entry: Entry, root: Path) -> Arrays:
    """Five training batches and one test batch."""
    batches = [_read_batch(entry, root / file, "labels") for file in entry.files]
    x_train = np.concatenate([x for x, _ in batches[:-1]])
    y_train = np.concatenate([y for _, y in batches[:-1]])
    return Arrays(x_train, y_train, *batches[-1])


@reads("cifar100")
def read_cifar100(entry: Entry, root: Path) -> Arrays:
    """One file each for training, test and the names of the hundred fine classes."""
    train, test, meta = (root / file for file in entry.files)
    names = _field(load_arrays(meta), meta, "fine_label_names")
    if not isinstance(names, list) or len(names) != entry.classes:
        raise DataError(f"{meta} does not name {entry.classes} classes; fetch the file again.")
    texts = tuple(name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names)
    return Arrays(*_read_batch(entry, train, "fine_labels"), *_read_batch(entry, test, "fine_labels"), texts)


def _read_batch(entry: Entry, path: Path, labels: str) -> tuple[Bytes, NDArray[np.int64]]:
    """The rows of `data` are images with the colours one after another: (N, C*H*W) -> (N, H, W, C)."""
    content = load_arrays(path)
    channels, height, width = entry.input_shape
    data = _field(content, path, "data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != channels * height * width:
        raise DataError(f"{path} does not hold rows of {channels * height * width} bytes; fetch the file again.")
    pixels = data.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
    return checked(path, entry, pixels, _field(content, path, labels))


def _field(content: dict[str, Any], path: Path, key: str) -> Any:
    if key not in content:
        raise DataError(f"{path} has no {key!r}; is it the Python version of the data set?")
    return content[key]
