"""The results of a run: a SQLite file with one row per image, written as the image ends.

A killed process leaves whole rows or none (the journal is a write-ahead log), so a run goes on where it stopped.
"""

from __future__ import annotations

import io
import json
import math
import os
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from lipgraft.errors import LipgraftError
from lipgraft.verify.verdict import Verdict

FORMAT = "1"

TABLES = """
CREATE TABLE IF NOT EXISTS run (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS results (
    image INTEGER PRIMARY KEY, label INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT, method TEXT, margin REAL,
    seconds REAL NOT NULL, subproblems INTEGER NOT NULL, unstable REAL, counterexample BLOB
);
"""
COLUMNS = "image, label, status, reason, method, margin, seconds, subproblems, unstable, counterexample"


class StoreError(LipgraftError):
    """A results file is damaged, in use, or of another run."""


@dataclass(frozen=True)
class Identity:
    """What results belong to. Results of another model, data set, eps or settings never mix with these."""

    model: str
    dataset: str
    eps: float
    settings: Mapping[str, Any]

    def texts(self) -> dict[str, str]:
        settings = json.dumps(dict(self.settings), sort_keys=True)
        return {"model": self.model, "dataset": self.dataset, "eps": repr(self.eps), "settings": settings}


@dataclass(frozen=True, eq=False)
class Row:
    """image: its index in the test set; label: its class."""

    image: int
    label: int
    verdict: Verdict


class ResultStore:
    """A results file, held by this process alone until it is closed."""

    def __init__(self, path: str | os.PathLike[str], identity: Identity) -> None:
        """Open or create the file; a file of another run is refused with a sentence."""
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path)
        try:
            self._connection = _connect(self.path)
            self._claim(identity)
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
        if hasattr(self, "_connection"):
            self._connection.close()
        if self._lock is not None:
            self._lock.close()

    def _claim(self, identity: Identity) -> None:
        """Write what the file belongs to, or compare."""
        new = {"format": FORMAT, **identity.texts()}
        with self._connection:
            self._connection.executemany("INSERT OR IGNORE INTO run VALUES (?, ?)", list(new.items()))
        old = dict(self._connection.execute("SELECT key, value FROM run"))
        for key, value in new.items():
            if old[key] != value:
                raise StoreError(f"{self.path} {_difference(key, old[key], value)}; give another --out to start anew.")

    def put(self, row: Row) -> None:
        """Write one image's verdict; an image that is there already is left as it is."""
        v = row.verdict
        margin = None if v.margin is None or math.isnan(v.margin) else v.margin
        example = None if v.counterexample is None else _to_bytes(v.counterexample)
        values = (
            row.image,
            row.label,
            v.status,
            v.reason,
            v.method,
            margin,
            v.seconds,
            v.subproblems,
            v.unstable,
            example,
        )
        with self._connection:
            self._connection.execute(f"INSERT OR IGNORE INTO results ({COLUMNS}) VALUES ({'?, ' * 9}?)", values)

    def done(self) -> set[int]:
        """The images that have a verdict."""
        return {image for (image,) in self._connection.execute("SELECT image FROM results")}

    def rows(self) -> list[Row]:
        """All rows, in the order of the images."""
        return _rows(self._connection)


def read_results(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a results file, in the order of the images; also while another process writes it."""
    if not Path(path).is_file():
        raise StoreError(f"there is no results file {path}; `lipgraft verify ... --out` writes one.")
    connection = _connect(Path(path))
    try:
        return _rows(connection)
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30.0)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(TABLES)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StoreError(f"{path} is not a results file ({error}); remove it or give another --out.") from None
    return connection


def _rows(connection: sqlite3.Connection) -> list[Row]:
    out: list[Row] = []
    for row in connection.execute(f"SELECT {COLUMNS} FROM results ORDER BY image"):
        image, label, status, reason, method, margin, seconds, subproblems, unstable, example = row
        point = None if example is None else _from_bytes(example)
        verdict = Verdict(status, reason, point, margin, seconds, method, subproblems, unstable)
        out.append(Row(image, label, verdict))
    return out


def _difference(key: str, old: str, new: str) -> str:
    """The sentence's middle: what the file holds that this run does not want."""
    if key == "settings":
        before, after = json.loads(old), json.loads(new)
        names = [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
        parts = [f"{n} {before.get(n)!r} instead of {after.get(n)!r}" for n in names]
        return f"holds results with other settings ({', '.join(parts)})"
    if key == "model":
        return f"holds results of another model (fingerprint {old[:12]} instead of {new[:12]})"
    return f"holds results with {key} {old} instead of {new}"


def _lock(path: Path) -> IO[str] | None:
    """One writer at a time; the system takes the lock back when the process ends, however it ends."""
    if sys.platform == "win32":
        return None
    import fcntl

    file = open(path.with_name(path.name + ".lock"), "w", encoding="utf-8")  # noqa: SIM115  (held until close)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise StoreError(f"another process is writing to {path}; wait for it, or give another --out.") from None
    return file


def _to_bytes(point: Tensor) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, point.detach().cpu().numpy(), allow_pickle=False)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))
