"""The results of a run: a SQLite file with one row per image, written as the image ends.

A killed process leaves whole rows or none (the journal is a write-ahead log), so a run goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from types import TracebackType

from lipgraft.errors import FileError
from lipgraft.files import check_folder
from lipgraft.locking import hold_file
from lipgraft.verification.database import (
    COLUMNS,
    DEFINITIONS,
    PLACES,
    Row,
    StoreError,
    connect,
    is_results,
    read_rows,
    reading,
    speaking,
    tables,
    to_values,
)
from lipgraft.verification.fingerprint import Identity

FORMAT = "2"
"""Of the file. Format 1 did not record the images, the version, nor whether an image was attacked."""

TABLES = (
    "CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"CREATE TABLE results (image INTEGER PRIMARY KEY, {DEFINITIONS})",
)


class ResultStore:
    """A results file, held by this process alone until it is closed."""

    def __init__(self, path: str | os.PathLike[str], identity: Identity) -> None:
        """Open or create the file; a file of another run is refused with a sentence."""
        self.path = Path(path)
        check_folder(self.path.parent)
        try:
            self._lock = hold_file(self.path)
        except FileError as error:
            raise StoreError(str(error)) from None
        self._connection: sqlite3.Connection | None = None
        try:
            with speaking(self.path):
                self._connection = connect(self.path)
                self._claim(self._connection, identity)
        except StoreError:
            self.close()
            raise

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._lock.release()

    def _claim(self, connection: sqlite3.Connection, identity: Identity) -> None:
        """Write what the file belongs to, or compare. Nothing is written to a file that is not wholly ours."""
        known = tables(connection)
        new = {"format": FORMAT, **identity.texts()}
        if not known:
            connection.execute("PRAGMA journal_mode=WAL")
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for table in TABLES:
                    connection.execute(table)
                connection.executemany("INSERT INTO run VALUES (?, ?)", list(new.items()))
            return
        old = _belongs(self.path, connection, known)
        for key, value in new.items():
            if old.get(key) != value:
                raise StoreError(f"{self.path} {_difference(key, old, value)}; give another --out to start anew.")

    @property
    def connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} is closed.")
        return self._connection

    def put(self, row: Row) -> None:
        """Write one image's verdict; an image that is there already is left as it is."""
        with speaking(self.path), self.connection as connection:
            connection.execute(f"INSERT OR IGNORE INTO results ({COLUMNS}) VALUES ({PLACES})", to_values(row))

    def done(self) -> set[int]:
        """The images that have a verdict."""
        with speaking(self.path):
            return {image for (image,) in self.connection.execute("SELECT image FROM results")}

    def rows(self) -> list[Row]:
        """All rows, in the order of the images."""
        with speaking(self.path):
            return read_rows(self.connection)


def read_results(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a results file of this or an older version, in the order of the images.

    Also while another process writes it, and where nothing may be written.
    """
    file = Path(path)
    if not file.is_file():
        raise StoreError(f"there is no results file {path}; `lipgraft verify ... --out` writes one.")
    with speaking(file), reading(file) as connection:
        _belongs(file, connection, tables(connection))
        return read_rows(connection)


def _belongs(path: Path, connection: sqlite3.Connection, known: dict[str, set[str]]) -> dict[str, str]:
    """What a file says of itself; a file of something else is refused."""
    if known.get("run") != {"key", "value"} or not is_results(known.get("results", set())):
        raise StoreError(f"{path} is an SQLite file of something else, not of `lipgraft verify`; give another --out.")
    return dict(connection.execute("SELECT key, value FROM run"))


def _difference(key: str, old: dict[str, str], new: str) -> str:
    """The sentence's middle: what the file holds that this run does not want."""
    was = old.get(key, "")
    if key == "format" and was == "1":
        return (
            "was written by an older lipgraft, which did not record which images and which verifier its results belong "
            "to, so it can be read (`lipgraft report`) but not continued"
        )
    if key == "settings":
        before, after = json.loads(was), json.loads(new)
        names = [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
        parts = [f"{n} {before.get(n)!r} instead of {after.get(n)!r}" for n in names]
        return f"holds results with other settings ({', '.join(parts)})"
    if key in ("model", "images"):
        what = "of another model" if key == "model" else "for other images or labels under the same name"
        return f"holds results {what} (fingerprint {was[:12]} instead of {new[:12]})"
    if key == "verifier":
        return f"holds results of lipgraft {was}, and this is {new}"
    return f"holds results with {key} {was} instead of {new}"
