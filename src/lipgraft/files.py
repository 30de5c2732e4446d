"""Files that are either the old ones or the new ones, never half of one; and folders that can be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from lipgraft.errors import FileError

SYNCS = 16
"""Files that are synced at the same time."""


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes, *, sync: bool = True) -> None:
    """Write `data` to `path` so that a crash at any moment leaves the old file or the new one, whole.

    The bytes go to a temporary file in the same directory (a rename across file systems is not atomic), are synced to
    the disk, and the file is renamed; then the directory is synced, so that the rename itself survives a power cut.
    Missing parent directories are created. What the system refuses (a full disk, say) is a FileError.
    sync: without, only what may happen to the process is survived; `sync_files` does the rest for many files at once.
    """
    with written(Path(path)):
        _write(Path(path), data, sync)


def sync_files(paths: Collection[Path]) -> None:
    """Let files of one directory survive a power cut. Side by side: a disk takes hardly longer for many than for one.

    A file that is not there any more is left out.
    """
    if not paths:
        return
    with ThreadPoolExecutor(SYNCS) as pool:
        list(pool.map(_sync_file, paths))
    _sync_directory(next(iter(paths)).parent)


def _sync_file(path: Path) -> None:
    with written(path), suppress(FileNotFoundError), path.open("rb+") as file:
        os.fsync(file.fileno())


def _write(target: Path, data: bytes, sync: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, _mode_for(target))
        os.replace(temporary, target)
    except BaseException:  # also on Ctrl-C: leave no temporary file behind
        Path(temporary).unlink(missing_ok=True)
        raise
    if sync:
        _sync_directory(target.parent)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """`atomic_write_bytes` for UTF-8 text."""
    atomic_write_bytes(path, text.encode())


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn what the system says while `path` is written into one sentence."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}; what was there is unchanged.") from error


def check_file(path: str | os.PathLike[str]) -> Path:
    """The path, when a file can be written there: to be asked before the work whose result it gets."""
    target = Path(path)
    with written(target):
        if target.is_dir():
            raise FileError(f"{target} is a folder; give the name of a file.")
        target.parent.mkdir(parents=True, exist_ok=True)
        _try(target.parent, target.name)
    return target


def check_folder(path: str | os.PathLike[str]) -> Path:
    """The path, when it is a folder, made if it is missing, in which files can be written."""
    folder = Path(path)
    with written(folder):
        if folder.exists() and not folder.is_dir():
            raise FileError(f"{folder} is a file; give the name of a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        _try(folder, "")
    return folder


def _try(folder: Path, name: str) -> None:
    """Write a byte into a new file of the folder and remove it, as `atomic_write_bytes` will."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", suffix=".tmp") as file:
        file.write(b"0")
        file.flush()


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
