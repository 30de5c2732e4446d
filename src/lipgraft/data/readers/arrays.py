"""What every reader returns, and the registry of readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipgraft.data.catalogue import Entry
from lipgraft.errors import DataError

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Arrays:
    """x_train, x_test: (N, H, W, C) uint8; y_train, y_test: (N,) int64; names: of the classes, when the files say."""

    x_train: Bytes
    y_train: NDArray[np.int64]
    x_test: Bytes
    y_test: NDArray[np.int64]
    names: tuple[str, ...] = ()


Reader = Callable[[Entry, Path], Arrays]
READERS: dict[str, Reader] = {}


def reads(*names: str) -> Callable[[Reader], Reader]:
    """Register a reader for these data sets."""

    def register(reader: Reader) -> Reader:
        READERS.update(dict.fromkeys(names, reader))
        return reader

    return register


def checked(path: Path, entry: Entry, x: Any, y: Any) -> tuple[Bytes, NDArray[np.int64]]:
    """Images (N, H, W, C) uint8 and labels (N,) int64, or a DataError when the file does not hold such."""
    channels, height, width = entry.input_shape
    images, labels = np.asarray(x), np.asarray(y)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (height, width, channels):
        raise DataError(
            f"{path} holds {images.dtype} images of shape {images.shape[1:]}, not uint8 {(height, width, channels)}; "
            "fetch the file again."
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(images) or len(images) == 0:
        raise DataError(f"{path} holds {len(images)} images and labels of shape {labels.shape}; fetch the file again.")
    if labels.min() < 0 or labels.max() >= entry.classes:
        raise DataError(f"{path} has labels outside 0..{entry.classes - 1}; fetch the file again.")
    return np.ascontiguousarray(images), labels.astype(np.int64)
