"""The rows of an experiment: names, variations of a named row, and grids of variations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.runs.loading import nested, over

Row = dict[str, Any]


def expand(rows: Iterable[Any], named: Mapping[str, Row], *, smoke: bool, where: str) -> list[Row]:
    """Models of a recipe.

    A row is a name of `named`; or a mapping of a model's keys, over those of the row that `like` names, with changes
    for the smoke scale under `smoke`; and if it has a `grid` of dotted keys and their values, one model for each
    combination, with {key} in its name and title replaced by the value.
    """
    found: list[Row] = []
    for row in rows:
        found += _expanded(row, named, smoke, where)
    return found


def _expanded(row: Any, named: Mapping[str, Row], smoke: bool, where: str) -> list[Row]:
    if isinstance(row, str):
        return [{"name": row, **_like(row, named, where)}]
    if not isinstance(row, Mapping):
        raise SettingsError(f"{where}: a row must be a name or a mapping, got {row!r}.")
    own = dict(row)
    for_smoke = own.pop("smoke", {})
    if not isinstance(for_smoke, Mapping):
        raise SettingsError(f"{where}: smoke must be a mapping of settings, got {for_smoke!r}.")
    own = over(own, for_smoke) if smoke else own
    grid = own.pop("grid", None)
    if "like" in own:
        like = str(own.pop("like"))
        own = {"name": like, **over(_like(like, named, where), own)}
    return [own] if grid is None else _grid(own, grid, where)


def _like(name: str, named: Mapping[str, Row], where: str) -> Row:
    if name not in named:
        raise SettingsError(f"{where}: {unknown_name('row', name, list(named))}")
    return named[name]


def _grid(row: Row, grid: Any, where: str) -> list[Row]:
    """One row for each combination of values."""
    if not isinstance(grid, Mapping) or not all(isinstance(values, list) and values for values in grid.values()):
        raise SettingsError(f"{where}: a grid must give a list of values for each dotted key, got {grid!r}.")
    found = []
    for values in itertools.product(*grid.values()):
        new = row
        for key, value in zip(grid, values, strict=True):
            new = over(new, nested(key, value))
        words = {key.rpartition(".")[2]: value for key, value in zip(grid, values, strict=True)}
        name, title = (_filled(str(row.get(key, row["name"])), words, where) for key in ("name", "title"))
        found.append({**new, "name": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"), "title": title})
    return found


def _filled(text: str, words: Mapping[str, Any], where: str) -> str:
    try:
        return text.format(**words)
    except (KeyError, IndexError):
        raise SettingsError(f"{where}: {text!r} may name {', '.join(f'{{{word}}}' for word in words)} alone.") from None
