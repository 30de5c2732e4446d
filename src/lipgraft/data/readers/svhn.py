"""SVHN, cropped digits: two MATLAB files."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lipgraft.data.catalogue import Entry
from lipgraft.data.readers.arrays import Arrays, Bytes, checked, reads
from lipgraft.errors import DataError

MOST_VALUES = 2**31
"""SVHN's largest array, the extra images, has 1.6e9 values."""


@reads("svhn")
def read_svhn(entry: Entry, root: Path) -> Arrays:
    """The training and the test file; the files call the digit 0 "10"."""
    train, test = (_read_mat(entry, root / file) for file in entry.files)
    return Arrays(*train, *test)


def _read_mat(entry: Entry, path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """X: (H, W, C, N) uint8; y: (N, 1) in 1..10."""
    from scipy.io import loadmat, whosmat  # here, because importing scipy.io is slow
    from scipy.io.matlab import MatReadError

    try:
        # The sizes first: a small file may unpack to any size.
        if any(math.prod(shape) > MOST_VALUES for name, shape, _ in whosmat(path) if name in ("X", "y")):
            raise DataError(f"{path} says that it holds more than any data set; fetch the file again.")
        content = loadmat(path, variable_names=("X", "y"))
    except (MatReadError, ValueError, TypeError, OSError, EOFError, NotImplementedError, zlib.error) as error:
        raise DataError(f"{path} is damaged or not a MATLAB 5 file ({error}); fetch the file again.") from None
    if "X" not in content or "y" not in content or content["X"].ndim != 4:
        raise DataError(f"{path} does not hold the images X and the labels y; fetch the file again.")
    labels = content["y"].reshape(-1).astype(np.int64)
    return checked(path, entry, content["X"].transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels))
