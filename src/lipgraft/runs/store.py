"""The results store: verdicts in SQLite, one row per image, for anyone who speaks SQL.

`ResultStore` is the file of one verification, written as images end: a killed process leaves whole rows or none (the
journal is a write-ahead log), so the run goes on where it stopped. `write_model` and `read_model` are for the file of a
whole run, whose rows also name their model. Files of every version can be read.
"""

from __future__ import annotations

import io
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipgraft.errors import FileError, LipgraftError, SettingsError
from lipgraft.files import check_folder
from lipgraft.locking import hold_file
from lipgraft.runs.fingerprint import Identity
from lipgraft.verification import Verdict
from lipgraft.verification.settings import FLAT_NAMES, LIMITS

RESULTS = "results.sqlite"
"""The name of a results file in its folder."""
FORMAT = "2"
"""Of a verification's file. Format 1 did not record the images, the version, nor whether an image was attacked."""
WAIT_SECONDS = 2.0
"""For another process's write, which takes milliseconds; a file that stays locked is a program's that forgot it."""

FIRST = "image, label, status, reason, method, margin, seconds, subproblems, unstable, counterexample"
"""The columns that every version has written."""
COLUMNS = f"{FIRST}, correct, attacked, ended"
PLACES = ", ".join("?" for _ in COLUMNS.split(","))
DEFINITIONS = """
    label INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT, method TEXT, margin REAL,
    seconds REAL NOT NULL, subproblems INTEGER NOT NULL, unstable REAL,
    counterexample BLOB, -- a NumPy .npy file
    ended REAL, -- seconds from the beginning of the run, or NULL where it is not known
    correct INTEGER, attacked INTEGER -- 0, 1, or NULL where it is not known
"""
"""Of all columns but the image's number, which is part of a table's key."""
ADDED = {"correct": "INTEGER", "attacked": "INTEGER", "ended": "REAL"}
"""Columns that files of older versions may lack, and their types."""

TABLES = (
    "CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"CREATE TABLE results (image INTEGER PRIMARY KEY, {DEFINITIONS})",
)
MODEL_TABLE = (
    f"CREATE TABLE results (model TEXT NOT NULL, image INTEGER NOT NULL, {DEFINITIONS}, PRIMARY KEY (model, image))"
)


class StoreError(LipgraftError):
    """A results file is damaged, in use, of something else, or cannot be written."""


@dataclass(frozen=True, eq=False)
class Row:
    """image: its index in the test set; label: its class."""

    image: int
    label: int
    verdict: Verdict


class ResultStore:
    """A results file, held by this process alone until it is closed."""

    def __init__(self, path: str | os.PathLike[str], identity: Identity, *, again: bool = False) -> None:
        """Open or create the file; a file of another run is refused with a sentence.

        again: verdicts of unknown images may be replaced, and the limits are those of `identity` from now on.
        """
        self.path, self.again = Path(path), again
        check_folder(self.path.parent)
        try:
            self._lock = hold_file(self.path)
        except FileError as error:
            raise StoreError(str(error)) from None
        self._connection: sqlite3.Connection | None = None
        try:
            with _speaking(self.path):
                self._connection = _connect(self.path)
                # Without a wait for the disk at every row. Rows that a power cut takes are found again by the next run.
                self._connection.execute("PRAGMA synchronous=NORMAL")
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
        known = _tables(connection)
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
            same = old.get(key) == value
            if not same and not (
                self.again and key == "settings" and _without_limits(old[key]) == _without_limits(value)
            ):
                raise StoreError(f"{self.path} {_difference(key, old, value)}; give another --out to start anew.")
        with connection:
            _add_columns(connection, known["results"])
            connection.execute("UPDATE run SET value = ? WHERE key = 'settings'", (new["settings"],))

    @property
    def connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} is closed.")
        return self._connection

    def put(self, row: Row) -> None:
        """Write one image's verdict; an image that is there already is left as it is, unless it is unknown and may be
        replaced."""
        with _speaking(self.path), self.connection as connection:
            if self.again:
                connection.execute("DELETE FROM results WHERE image = ? AND status = 'unknown'", (row.image,))
            connection.execute(f"INSERT OR IGNORE INTO results ({COLUMNS}) VALUES ({PLACES})", _to_values(row))

    def done(self) -> set[int]:
        """The images that have a verdict."""
        with _speaking(self.path):
            return {image for (image,) in self.connection.execute("SELECT image FROM results")}

    def rows(self) -> list[Row]:
        """All rows, in the order of the images."""
        with _speaking(self.path):
            return _read_rows(self.connection)


def read_results(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a results file of this or an older version, in the order of the images.

    Also while another process writes it, and where nothing may be written.
    """
    file = Path(path)
    if not file.is_file():
        raise StoreError(f"there is no results file {path}; `lipgraft verify ... --out` writes one.")
    with _speaking(file), _reading(file) as connection:
        _belongs(file, connection, _tables(connection))
        return _read_rows(connection)


def count_statuses(path: Path) -> dict[str, int]:
    """How many images have which status by now, also while another process writes, or has only made the file."""
    with _speaking(path), _reading(path) as connection:
        if "results" not in _tables(connection):
            return {}
        return dict(connection.execute("SELECT status, COUNT(*) FROM results GROUP BY status"))


def write_model(path: Path, model: str, rows: Sequence[Row]) -> None:
    """Replace a model's rows in the file of a whole run, all or none."""
    values = [(model, *_to_values(row)) for row in rows]
    check_folder(path.parent)
    with _speaking(path), closing(_connect(path)) as connection, connection:
        known = _tables(connection)
        if known:
            _check_models(path, known)
            _add_columns(connection, known["results"])
        else:
            connection.execute(MODEL_TABLE)
        connection.execute("DELETE FROM results WHERE model = ?", (model,))
        connection.executemany(f"INSERT INTO results (model, {COLUMNS}) VALUES (?, {PLACES})", values)


def has_model(path: Path, model: str) -> bool:
    """Whether the file of a whole run is there, with rows of the model."""
    if not path.is_file():
        return False
    with _speaking(path), _reading(path) as connection:
        if "model" not in _tables(connection).get("results", set()):
            return False
        return connection.execute("SELECT 1 FROM results WHERE model = ? LIMIT 1", (model,)).fetchone() is not None


def read_model(path: Path, model: str) -> list[Row]:
    """A model's rows in the file of a whole run, in the order of the images."""
    if not path.is_file():
        raise SettingsError(f"there is no {path}; run the recipe again to make it.")
    with _speaking(path), _reading(path) as connection:
        _check_models(path, _tables(connection))
        return _read_rows(connection, "model = ?", (model,))


def _add_columns(connection: sqlite3.Connection, known: set[str]) -> None:
    """Give the table of an older version the columns it lacks."""
    for name in (name for name in ADDED if name not in known):
        connection.execute(f"ALTER TABLE results ADD COLUMN {name} {ADDED[name]}")


def _check_models(path: Path, known: dict[str, set[str]]) -> None:
    columns = known.get("results", set())
    if "model" not in columns or not _is_results(columns):
        raise StoreError(f"{path} is an SQLite file of something else, not of `lipgraft run`; give another --out.")


def _belongs(path: Path, connection: sqlite3.Connection, known: dict[str, set[str]]) -> dict[str, str]:
    """What a file says of itself; a file of something else is refused."""
    if known.get("run") != {"key", "value"} or not _is_results(known.get("results", set())):
        raise StoreError(f"{path} is an SQLite file of something else, not of `lipgraft verify`; give another --out.")
    return dict(connection.execute("SELECT key, value FROM run"))


def _without_limits(settings: str) -> dict[str, Any]:
    """Settings as they are stored, without those that an image's second try may change."""
    return {name: value for name, value in json.loads(settings).items() if name not in LIMITS}


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
        parts = [f"{FLAT_NAMES.get(n, n)} {before.get(n)!r} instead of {after.get(n)!r}" for n in names]
        hint = "; --again tries unknown images with other limits" if set(names) <= set(LIMITS) else ""
        return f"holds results with other settings ({', '.join(parts)}){hint}"
    if key in ("model", "images"):
        what = "of another model" if key == "model" else "for other images or labels under the same name"
        return f"holds results {what} (fingerprint {was[:12]} instead of {new[:12]})"
    if key == "verifier":
        return f"holds results of lipgraft {was}, and this is {new}"
    return f"holds results with {key} {was} instead of {new}"


@contextmanager
def _speaking(path: Path) -> Iterator[None]:
    """Turn what SQLite says of the file into one sentence. Only of what is certainly no results file does it say so."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_sentence(path, error)) from error


def _connect(database: str | Path) -> sqlite3.Connection:
    """A connection; a path is made if it is missing, an address that begins with file: says how it is opened."""
    connection = sqlite3.connect(database, uri=isinstance(database, str), timeout=WAIT_SECONDS)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, so that a file in a folder without permission to write can be read too."""
    connection = _read_only(path)
    try:
        yield connection
    finally:
        connection.close()


def _read_only(path: Path) -> sqlite3.Connection:
    address = path.absolute().as_uri()
    try:
        return _connect(f"{address}?mode=ro")
    except sqlite3.OperationalError as error:
        # SQLite wants to write beside a file with a write-ahead log. Without a log there is nothing to miss.
        if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or _log(path).exists():
            raise
        return _connect(f"{address}?immutable=1")


def _tables(connection: sqlite3.Connection) -> dict[str, set[str]]:
    """The names of the tables, each with those of its columns."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name: {column for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))}
        for name in names
    }


def _is_results(columns: set[str]) -> bool:
    """Whether a table with these columns holds verdicts, of this version or an older one."""
    return columns >= set(FIRST.split(", "))


def _read_rows(connection: sqlite3.Connection, where: str = "", values: tuple[object, ...] = ()) -> list[Row]:
    """The rows of the table `results`, in the order of the images. where: a condition on other columns."""
    columns = _tables(connection)["results"]
    wanted = ", ".join(name if name in columns else f"NULL AS {name}" for name in COLUMNS.split(", "))
    condition = f"WHERE {where} " if where else ""
    return [_row(row) for row in connection.execute(f"SELECT {wanted} FROM results {condition}ORDER BY image", values)]


def _to_values(row: Row) -> tuple[object, ...]:
    """In the order of COLUMNS."""
    v = row.verdict
    margin = None if v.margin is None or math.isnan(v.margin) else v.margin
    example = None if v.counterexample is None else _to_bytes(v.counterexample)
    measured = (v.status, v.reason, v.method, margin, v.seconds, v.subproblems, v.unstable)
    return (row.image, row.label, *measured, example, v.correct, v.attacked, v.ended)


def _row(values: tuple[Any, ...]) -> Row:
    image, label, status, reason, method, margin, seconds, subproblems, unstable, example, *added = values
    correct, attacked, ended = added
    point = None if example is None else _from_bytes(example)
    right, tried = (None if flag is None else bool(flag) for flag in (correct, attacked))
    measured = (margin, seconds, method, subproblems, unstable)
    return Row(image, label, Verdict(status, reason, point, *measured, correct=right, attacked=tried, ended=ended))


def _to_bytes(point: Tensor) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, point.detach().cpu().numpy(), allow_pickle=False)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary code; errors of the Python module itself have none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _sentence(path: Path, error: sqlite3.Error) -> str:
    kept = "what it holds is safe"
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"{path} is locked by another program; close it there and run the same command again, {kept}."
        case sqlite3.SQLITE_FULL:
            return (
                f"{path} cannot be written: the disk is full; free some space and run the same command again, {kept}."
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return f"{path} cannot be opened or written ({error}); check the permissions of its folder, {kept}."
        case sqlite3.SQLITE_IOERR:
            return f"{path} cannot be read or written ({error}); check the disk and run the same command again."
        case sqlite3.SQLITE_NOTADB:
            return f"{path} is not a results file ({error}); give another --out."
        case sqlite3.SQLITE_CORRUPT:
            return f"{path} is damaged ({error}); restore it from a copy, or delete it to begin anew."
        case _:
            return f"{path} could not be used as a results file ({error}); give another --out."
