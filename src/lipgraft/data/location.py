"""Where the data sets lie: an argument, else LIPGRAFT_DATA, else the user's cache directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lipgraft.data.catalogue import Entry


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data sets, as an absolute path; it need not exist yet."""
    if root is not None:
        return Path(root).expanduser().absolute()
    named = os.environ.get("LIPGRAFT_DATA")
    return Path(named).expanduser().absolute() if named else _cache_directory() / "lipgraft" / "data"


def find_file(root: Path, file: str) -> Path | None:
    """The file of that name under the root, or its gzipped twin, or None."""
    for path in (root / file, root / f"{file}.gz"):
        if path.is_file():
            return path
    return None


def missing_files(entry: Entry, root: Path) -> list[str]:
    """The files of the data set that are not under the root, as paths relative to it."""
    return [file for file in entry.files if find_file(root, file) is None]


def _cache_directory() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
