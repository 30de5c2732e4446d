"""Verdicts in SQLite: one row per image, read from files of every version, and one sentence for each way to fail.

The store of a verification and the results of a whole run are both such tables.
"""

from __future__ import annotations

import io
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipgraft.errors import LipgraftError
from lipgraft.verification.verdict import Verdict

WAIT_SECONDS = 2.0
"""For another process's write, which takes milliseconds; a file that stays locked is a program's that forgot it."""

FIRST = "image, label, status, reason, method, margin, seconds, subproblems, unstable, counterexample"
"""The columns that every version has written."""
COLUMNS = f"{FIRST}, correct, attacked"
PLACES = ", ".join("?" for _ in COLUMNS.split(","))
DEFINITIONS = """
    label INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT, method TEXT, margin REAL,
    seconds REAL NOT NULL, subproblems INTEGER NOT NULL, unstable REAL,
    counterexample BLOB, -- a NumPy .npy file
    correct INTEGER, attacked INTEGER -- 0, 1, or NULL where it is not known
"""
"""Of all columns but the image's number, which is part of a table's key."""


class StoreError(LipgraftError):
    """A results file is damaged, in use, of something else, or cannot be written."""


@dataclass(frozen=True, eq=False)
class Row:
    """image: its index in the test set; label: its class."""

    image: int
    label: int
    verdict: Verdict


@contextmanager
def speaking(path: Path) -> Iterator[None]:
    """Turn what SQLite says of the file into one sentence. Only of what is certainly no results file does it say so."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_sentence(path, error)) from error


def connect(path: Path) -> sqlite3.Connection:
    """A connection that may write; the file is made if it is missing."""
    connection = sqlite3.connect(path, timeout=WAIT_SECONDS)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, so that a file in a folder without permission to write can be read too."""
    connection = _read_only(path)
    try:
        yield connection
    finally:
        connection.close()


def _read_only(path: Path) -> sqlite3.Connection:
    address = path.absolute().as_uri()
    try:
        return _opened(f"{address}?mode=ro")
    except sqlite3.OperationalError as error:
        # SQLite wants to write beside a file with a write-ahead log. Without a log there is nothing to miss.
        if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or _log(path).exists():
            raise
        return _opened(f"{address}?immutable=1")


def _opened(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, timeout=WAIT_SECONDS)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def tables(connection: sqlite3.Connection) -> dict[str, set[str]]:
    """The names of the tables, each with those of its columns."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name: {column for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))}
        for name in names
    }


def is_results(columns: set[str]) -> bool:
    """Whether a table with these columns holds verdicts, of this version or an older one."""
    return columns >= set(FIRST.split(", "))


def read_rows(connection: sqlite3.Connection, where: str = "", values: tuple[object, ...] = ()) -> list[Row]:
    """The rows of the table `results`, in the order of the images. where: a condition on other columns."""
    columns = tables(connection)["results"]
    wanted = ", ".join(name if name in columns else f"NULL AS {name}" for name in COLUMNS.split(", "))
    condition = f"WHERE {where} " if where else ""
    return [_row(row) for row in connection.execute(f"SELECT {wanted} FROM results {condition}ORDER BY image", values)]


def to_values(row: Row) -> tuple[object, ...]:
    """In the order of COLUMNS."""
    v = row.verdict
    margin = None if v.margin is None or math.isnan(v.margin) else v.margin
    example = None if v.counterexample is None else _to_bytes(v.counterexample)
    measured = (v.status, v.reason, v.method, margin, v.seconds, v.subproblems, v.unstable)
    return (row.image, row.label, *measured, example, v.correct, v.attacked)


def _row(values: tuple[Any, ...]) -> Row:
    image, label, status, reason, method, margin, seconds, subproblems, unstable, example, correct, attacked = values
    point = None if example is None else _from_bytes(example)
    flags = (None if flag is None else bool(flag) for flag in (correct, attacked))
    return Row(image, label, Verdict(status, reason, point, margin, seconds, method, subproblems, unstable, *flags))


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
            return f"{path} is damaged ({error}); restore it from a copy, or give another --out."
        case _:
            return f"{path} could not be used as a results file ({error}); give another --out."
