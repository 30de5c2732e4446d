"""results.sqlite of a run: one row per model and image, for anyone who speaks SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from lipgraft.errors import SettingsError
from lipgraft.files import check_folder
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

TABLE = f"""
CREATE TABLE results (
    model TEXT NOT NULL, image INTEGER NOT NULL, {DEFINITIONS},
    PRIMARY KEY (model, image)
)
"""
ADDED = "correct", "attacked"
"""Columns that files of older versions lack."""


def write(path: Path, model: str, rows: Sequence[Row]) -> None:
    """Put a model's rows in the place of those it had, all or none."""
    values = [(model, *to_values(row)) for row in rows]
    check_folder(path.parent)
    with speaking(path), closing(connect(path)) as connection, connection:
        known = tables(connection)
        if not known:
            connection.execute(TABLE)
        else:
            _complete(path, connection, known)
        connection.execute("DELETE FROM results WHERE model = ?", (model,))
        connection.executemany(f"INSERT INTO results (model, {COLUMNS}) VALUES (?, {PLACES})", values)


def read(path: Path, model: str) -> list[Row]:
    """A model's rows, in the order of the images."""
    if not path.is_file():
        raise SettingsError(f"there is no {path}; run the recipe again to make it.")
    with speaking(path), reading(path) as connection:
        _check(path, tables(connection))
        return read_rows(connection, "model = ?", (model,))


def _check(path: Path, known: dict[str, set[str]]) -> None:
    columns = known.get("results", set())
    if "model" not in columns or not is_results(columns):
        raise StoreError(f"{path} is an SQLite file of something else, not of `lipgraft run`; give another --out.")


def _complete(path: Path, connection: sqlite3.Connection, known: dict[str, set[str]]) -> None:
    """Give the table of an older version the columns it lacks."""
    _check(path, known)
    for name in ADDED:
        if name not in known["results"]:
            connection.execute(f"ALTER TABLE results ADD COLUMN {name} INTEGER")
