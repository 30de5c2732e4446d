"""Files that are either the old ones or the new ones, never half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` so that a crash at any moment leaves the old file or the new one, whole.

    The bytes go to a temporary file in the same directory (a rename across file systems is not atomic), are synced to
    the disk, and the file is renamed; then the directory is synced, so that the rename itself survives a power cut.
    Missing parent directories are created.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode_for(target))
        os.replace(temporary, target)
    except BaseException:  # also on Ctrl-C: leave no temporary file behind
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """`atomic_write_bytes` for UTF-8 text."""
    atomic_write_bytes(path, text.encode())


def _mode_for(target: Path) -> int:
    """The mode the file has, or that a new one would get: temporary files are private, which nobody expects."""
    if target.exists():
        return target.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return  # Windows cannot open a directory; its rename is journalled
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
