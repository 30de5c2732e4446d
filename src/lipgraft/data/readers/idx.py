"""MNIST and Fashion-MNIST: four idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from lipgraft.data.catalogue import Entry
from lipgraft.data.location import find_file
from lipgraft.data.readers.arrays import Arrays, Bytes, checked, reads
from lipgraft.errors import DataError

UNSIGNED_BYTE = 8


def read_idx(path: Path) -> Bytes:
    """An idx file of bytes: two zeros, the type, the number of axes, each length (4 bytes, big endian), the values."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch the file again.") from None
    if len(content) < 4 or content[:3] != bytes((0, 0, UNSIGNED_BYTE)):
        raise DataError(f"{path} is not an idx file of bytes; fetch the file again.")
    axes = content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise DataError(f"{path} is truncated; fetch the file again.")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=axes, offset=4))
    expected = start + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(f"{path} has {len(content)} bytes where {expected} are expected; fetch the file again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


@reads("mnist", "fashion-mnist")
def read_idx_set(entry: Entry, root: Path) -> Arrays:
    """Training images and labels, test images and labels, in the order of `entry.files`."""
    paths = [find_file(root, file) or root / file for file in entry.files]
    x_train, y_train, x_test, y_test = (read_idx(path) for path in paths)
    train = checked(paths[0], entry, x_train[..., None], y_train)
    test = checked(paths[2], entry, x_test[..., None], y_test)
    return Arrays(*train, *test)
