"""results.sqlite of a run: one row per model and image, for anyone who speaks SQL."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from lipgraft.errors import SettingsError
from lipgraft.verify import Row, Verdict

TABLE = """
CREATE TABLE IF NOT EXISTS results (
    model TEXT NOT NULL, image INTEGER NOT NULL, label INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT, method TEXT,
    margin REAL, seconds REAL NOT NULL, subproblems INTEGER NOT NULL, unstable REAL,
    counterexample BLOB, -- a NumPy .npy file
    PRIMARY KEY (model, image)
)
"""
COLUMNS = "image, label, status, reason, method, margin, seconds, subproblems, unstable, counterexample"


def write(path: Path, model: str, rows: Sequence[Row]) -> None:
    """Put a model's rows in the place of those it had, all or none."""
    values = [(model, *_values(row)) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(_connect(path)) as connection, connection:
        connection.execute(TABLE)
        connection.execute("DELETE FROM results WHERE model = ?", (model,))
        connection.executemany(f"INSERT INTO results (model, {COLUMNS}) VALUES ({'?, ' * 10}?)", values)


def read(path: Path, model: str) -> list[Row]:
    """A model's rows, in the order of the images."""
    if not path.is_file():
        raise SettingsError(f"there is no {path}; run the recipe again to make it.")
    with closing(_connect(path)) as connection:
        query = f"SELECT {COLUMNS} FROM results WHERE model = ? ORDER BY image"
        return [_row(*values) for values in connection.execute(query, (model,))]


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30.0)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise SettingsError(f"{path} is not a results file ({error}); remove it and run the recipe again.") from None
    return connection


def _values(row: Row) -> tuple[object, ...]:
    v = row.verdict
    measured = (v.status, v.reason, v.method, v.margin, v.seconds, v.subproblems, v.unstable)
    if v.counterexample is None:
        return (row.image, row.label, *measured, None)
    buffer = io.BytesIO()
    np.save(buffer, v.counterexample.detach().cpu().numpy(), allow_pickle=False)
    return (row.image, row.label, *measured, buffer.getvalue())


def _row(
    image: int,
    label: int,
    status: str,
    reason: str | None,
    method: str | None,
    margin: float | None,
    seconds: float,
    subproblems: int,
    unstable: float | None,
    example: bytes | None,
) -> Row:
    point = None if example is None else torch.from_numpy(np.load(io.BytesIO(example), allow_pickle=False))
    return Row(image, label, Verdict(status, reason, point, margin, seconds, method, subproblems, unstable))  # type: ignore[arg-type]
