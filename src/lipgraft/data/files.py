"""The files of a data set: where they are, and how missing ones are brought there, checked against their MD5 sums."""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

from lipgraft.data.catalogue import Entry, Remote
from lipgraft.errors import DataError


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


TIMEOUT_SECONDS = 30


def ensure(entry: Entry, root: Path, *, download: bool = True) -> None:
    """Return when every file of the data set is under the root; else download them, else say what to put where.

    Nothing is downloaded when `download` is False or the environment variable LIPGRAFT_OFFLINE is 1.
    """
    if not missing_files(entry, root):
        return
    if os.environ.get("LIPGRAFT_OFFLINE", "0") not in ("", "0"):
        raise DataError(_advice(entry, root, "downloading is switched off by LIPGRAFT_OFFLINE"))
    if not download:
        raise DataError(_advice(entry, root, "download=True or --download fetches it"))
    try:
        import pooch  # not needed to read files that are there
    except ImportError:
        raise DataError(_advice(entry, root, "downloading needs `pip install pooch`")) from None
    pooch.get_logger().setLevel("WARNING")
    for remote in entry.remotes:
        try:
            _retrieve(remote, root)
        except OSError as error:  # every failure of the network or of the disk; its own text fills a screen
            raise DataError(_advice(entry, root, f"{type(error).__name__} while fetching {remote.url}")) from error
        except ValueError as error:
            raise DataError(_advice(entry, root, f"{remote.url} has the wrong checksum")) from error
        except tarfile.TarError as error:
            raise DataError(_advice(entry, root, f"{remote.url} is not a whole archive: {error}")) from error
    if missing_files(entry, root):
        raise DataError(_advice(entry, root, "the download did not contain them"))


def _retrieve(remote: Remote, root: Path) -> None:
    import pooch

    target = root / remote.path
    file = pooch.retrieve(
        url=remote.url,
        known_hash=f"md5:{remote.md5}",
        fname=target.name,
        path=target.parent,
        downloader=pooch.HTTPDownloader(timeout=TIMEOUT_SECONDS, progressbar=False),
    )
    if remote.archive:
        with tarfile.open(file) as archive:
            archive.extractall(root, filter="data")  # refuses paths that leave the root


def _advice(entry: Entry, root: Path, reason: str) -> str:
    missing = missing_files(entry, root)
    shown = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
    return (
        f"the data set {entry.name!r} is not complete under {root} ({reason}); put {shown} there, "
        "or name the folder that holds them with --data-root or LIPGRAFT_DATA."
    )
