"""Reading files that may be packed with gzip, without trusting how large they claim to be."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from lipgraft.errors import LipgraftError

_MAGIC = b"\x1f\x8b"


def is_packed(file: Path) -> bool:
    """Whether a file is a gzip, by its first two bytes."""
    with file.open("rb") as stream:
        return stream.read(2) == _MAGIC


def read_packed(file: Path, largest: int, kind: type[LipgraftError]) -> bytes:
    """The bytes of a file, unpacked; at most `largest`. What is wrong with it is an error of this kind."""
    try:
        with gzip.open(file) if is_packed(file) else file.open("rb") as stream:
            data = stream.read(largest + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise kind(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if len(data) > largest:
        raise kind(f"{file} has more than {largest >> 20} MiB, unpacked; that is too large.")
    return data
