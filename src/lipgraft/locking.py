"""One writer at a time: what another process is writing is refused at once, with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from lipgraft.errors import FileError
from lipgraft.files import check_folder, written

LOCK = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's folder, made if it is missing, until the end of the block.

    The thread that holds it may hold it again inside. The system takes the lock back when the process ends, however it
    ends; the empty lock file stays.
    """
    lock = FileLock(check_folder(folder) / LOCK, is_singleton=True)
    _acquire(lock, folder)
    try:
        yield
    finally:
        lock.release()


def hold_file(path: Path) -> BaseFileLock:
    """Hold a file by a lock beside it until the lock is released; a second holder is refused even in this thread."""
    lock = FileLock(path.with_name(path.name + LOCK))
    _acquire(lock, path)
    return lock


@contextmanager
def awaited(path: Path) -> Iterator[None]:
    """Hold a lock file, made if it is missing, until the end of the block; another holder is waited for."""
    lock = FileLock(check_folder(path.parent) / path.name)
    with written(path):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: BaseFileLock, what: Path) -> None:
    with written(Path(lock.lock_file)):
        try:
            lock.acquire(timeout=0)
        except Timeout:  # an OSError too
            raise FileError(f"another process is writing to {what}; wait for it, or give another --out.") from None
