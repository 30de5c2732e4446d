"""MNIST and Fashion-MNIST: four idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from lipgraft.data.catalogue import Entry
from lipgraft.data.files import find_file
from lipgraft.data.readers.arrays import Arrays, Bytes, checked, reads
from lipgraft.errors import DataError

UNSIGNED_BYTE = 8
MOST_BYTES = 2**30


def read_idx(path: Path) -> Bytes:
    """An idx file of bytes: two zeros, the type, the number of axes, each length (4 bytes, big endian), the values.

    No more is unpacked than the lengths promise, and a byte to see whether there is more.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read_idx(path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch the file again.") from None


def _read_idx(path: Path, file: BufferedIOBase) -> Bytes:
    start = file.read(4)
    if len(start) < 4 or start[:3] != bytes((0, 0, UNSIGNED_BYTE)):
        raise DataError(f"{path} is not an idx file of bytes; fetch the file again.")
    lengths = file.read(4 * start[3])
    if len(lengths) < 4 * start[3]:
        raise DataError(f"{path} is truncated; fetch the file again.")
    shape = tuple(int(n) for n in np.frombuffer(lengths, ">u4"))
    expected = math.prod(shape)
    if expected > MOST_BYTES:
        raise DataError(f"{path} says that it holds {expected} bytes, more than any data set; fetch the file again.")
    content = file.read(expected + 1)
    if len(content) != expected:
        found = f"only {len(content)}" if len(content) < expected else "more than the"
        raise DataError(f"{path} has {found} bytes of values where {expected} are expected; fetch the file again.")
    return np.frombuffer(content, np.uint8).reshape(shape).copy()


@reads("mnist", "fashion-mnist")
def read_idx_set(entry: Entry, root: Path) -> Arrays:
    """Training images and labels, test images and labels, in the order of `entry.files`."""
    paths = [find_file(root, file) or root / file for file in entry.files]
    x_train, y_train, x_test, y_test = (read_idx(path) for path in paths)
    train = checked(paths[0], entry, x_train[..., None], y_train)
    test = checked(paths[2], entry, x_test[..., None], y_test)
    return Arrays(*train, *test)
