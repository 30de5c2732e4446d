"""The paper's experiments: from a YAML file and a scale to the recipes that it runs."""

from __future__ import annotations

import importlib.resources
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.report.published import PUBLISHED, published
from lipgraft.runs.recipe import TEST, ModelRecipe, Recipe, check_folder_name
from lipgraft.runs.recipe_file import changed, read, resolve
from lipgraft.settings import build, nested, over, setting

Row = dict[str, Any]
"""A model of a recipe, as it is written."""

SCALES = FULL, SMOKE = "full", "smoke"
DEFAULTS = "shared"
"""The file that the others extend; not an experiment itself."""


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment as it is written, after `extends`."""

    title: str = setting(help="Heading of the table.")
    about: str = setting(help="One line on what is compared.")
    runs: tuple[dict[str, Any], ...] = setting(help="One per network and data set: keys of RunFile, and of a recipe.")
    number: int | None = setting(None, "The number of the table in the paper.")
    settings: dict[str, Any] = setting({}, "A recipe without name and models that all runs start from.")
    networks: dict[str, dict[str, Any]] = setting({}, "The same by network, on top of settings.")
    models: dict[str, dict[str, Any]] = setting({}, "Rows by name, for runs to list.")
    smoke: dict[str, Any] = setting({}, "Settings that --scale smoke puts on top of all runs.")

    def __post_init__(self) -> None:
        if not self.runs:
            raise SettingsError("an experiment needs at least one run.")


@dataclass(frozen=True)
class RunFile:
    """The keys of a run that are not those of a recipe."""

    name: str = setting(help="Short name of the run.")
    models: tuple[Any, ...] = setting(help="Rows: names, or mappings that start from one by `like`, or a `grid`.")
    title: str = setting("", "Heading; by default the name.")
    paper: str | None = setting(None, "Where the published rows are: cnn-b/cifar10 and the row's name make the key.")
    literature: dict[str, str] = setting({}, "Published rows that are not run here, by title.")
    smoke: dict[str, Any] = setting({}, "Settings that --scale smoke puts on top of this run, after the experiment's.")

    def __post_init__(self) -> None:
        check_folder_name("a run's name", self.name)


@dataclass(frozen=True)
class ExperimentRun:
    """One network on one data set.

    recipe: with all rows of the experiment. literature: titles and keys of published rows to show beside ours. rows:
    the names of those that were asked for, which may be none; None: all.
    """

    name: str
    recipe: Recipe
    literature: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[str, ...] | None = None

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of the rows that were asked for."""
        return tuple(model.name for model in self.recipe.models) if self.rows is None else self.rows


@dataclass(frozen=True)
class Experiment:
    """changes: settings that were given on top of the file's, by dotted key. only: the rows that were asked for.
    networks: finished ones that are measured in place of rows, such as cnn-b/ours, by the names of these.
    """

    name: str
    title: str
    about: str
    scale: str
    runs: tuple[ExperimentRun, ...]
    number: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    networks: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.runs[0].recipe.seed

    @property
    def folder(self) -> str:
        """The name of its folder beside those of the others; each seed but 0 and other images have their own."""
        recipe = self.runs[0].recipe
        name = f"{self.name}-seed{self.seed}" if self.seed else self.name
        name += f"-{recipe.measured_on}" if recipe.measured_on != TEST else ""
        return f"{name}-from{recipe.certify.start}" if recipe.certify.start else name


def experiment_names() -> list[str]:
    """In the order of the paper's tables, then figures and extras by name."""
    names = [file.stem for file in _folder().glob("*.yaml") if file.stem != DEFAULTS]
    return sorted(names, key=lambda name: (_number(name) or 1000, name))


def load_experiment(source: str | Path, scale: str = FULL, changes: Mapping[str, Any] | None = None) -> Experiment:
    """An experiment by name, by the number of its table, or from a YAML file.

    changes: settings by dotted key, such as {"certify.count": 100}, that go first.
    """
    if scale not in SCALES:
        raise SettingsError(unknown_name("scale", scale, list(SCALES)))
    name = _named(str(source))
    check_folder_name("an experiment's name", Path(name).stem)
    file = _file(name)
    changes = changes or {}
    runs = tuple(_run(file, run, Path(name).stem, scale, changes) for run in file.runs)
    title = file.title if scale == FULL else f"{file.title} (smoke test on small stand-ins, not the paper's data)"
    return Experiment(Path(name).stem, title, file.about, scale, runs, file.number, dict(changes))


def chosen(experiments: Iterable[Experiment], only: Sequence[str]) -> list[Experiment]:
    """The experiments, asked for the named runs (cnn-b) and rows (ours, or cnn-b/ours) alone; those without any go."""
    every = list(experiments)
    known = {name for one in every for run in one.runs for row in run.recipe.models for name in _names(run, row.name)}
    for name in only:
        if name not in known:
            raise SettingsError(unknown_name("row", name, sorted(known)))
    asked = [replace(one, runs=tuple(_asked(run, set(only)) for run in one.runs), only=tuple(only)) for one in every]
    return [one for one in asked if any(run.asked for run in one.runs)]


def with_networks(experiments: Iterable[Experiment], networks: Mapping[str, str]) -> list[Experiment]:
    """The experiments, with finished networks measured in place of rows that would be trained.

    networks: files or module:function, by the names of the rows, such as cnn-b/ours.
    """
    every = list(experiments)
    known = {f"{run.name}/{row.name}" for one in every for run in one.runs for row in run.recipe.models}
    for name in networks:
        if name not in known:
            raise SettingsError(unknown_name("row", name, sorted(known)))
    return [_given(one, networks) for one in every]


def _given(experiment: Experiment, networks: Mapping[str, str]) -> Experiment:
    used: dict[str, str] = {}

    def given(run: ExperimentRun, row: ModelRecipe) -> ModelRecipe:
        name = f"{run.name}/{row.name}"
        if name not in networks:
            return row
        used[name] = networks[name]
        return replace(row, graft=None, finetune=None, network=networks[name])

    runs = tuple(
        replace(run, recipe=replace(run.recipe, models=tuple(given(run, row) for row in run.recipe.models)))
        for run in experiment.runs
    )
    return replace(experiment, runs=runs, networks=used)


def _asked(run: ExperimentRun, only: set[str]) -> ExperimentRun:
    return replace(run, rows=tuple(row.name for row in run.recipe.models if only & set(_names(run, row.name))))


def _names(run: ExperimentRun, row: str) -> tuple[str, str, str]:
    return run.name, row, f"{run.name}/{row}"


def _named(source: str) -> str:
    """A name or a path, where the number of a table stands for its name."""
    if Path(source).suffix in (".yaml", ".yml"):
        return source
    names = experiment_names()
    if source.isdigit():
        numbered = {_number(name): name for name in names}
        if int(source) in numbered:
            return numbered[int(source)]
    if source not in names:
        raise SettingsError(f"{unknown_name('experiment', source, names)} `lipgraft reproduce --list` shows them.")
    return source


@cache
def _number(name: str) -> int | None:
    """The number of the table, if it is one of the paper's."""
    return _file(name).number


def _file(name: str) -> ExperimentFile:
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else _folder() / f"{name}.yaml"
    return build(ExperimentFile, read(str(path)), where=path.name)


def _run(
    file: ExperimentFile, run: Mapping[str, Any], experiment: str, scale: str, changes: Mapping[str, Any]
) -> ExperimentRun:
    where = f"{experiment}, run {run.get('name', '?')}"
    own = {key: run[key] for key in RunFile.__dataclass_fields__ if key in run}
    given = build(RunFile, own, where=where)
    recipe = over(file.settings, file.networks.get(str(run.get("network")), {}))
    recipe = over(recipe, {key: value for key, value in run.items() if key not in own})
    if scale == SMOKE:
        recipe = over(over(recipe, file.smoke), given.smoke)
    recipe = changed(recipe, changes)
    recipe["name"] = f"{experiment}-{given.name}"
    recipe["title"] = given.title or given.name
    rows = expanded_rows(given.models, file.models, smoke=scale == SMOKE, where=where)
    recipe["models"] = [_with_paper(row, given.paper, where) for row in rows]
    for key in given.literature.values():
        published(key)
    resolved = resolve(recipe, where=where)
    if scale == SMOKE:
        title = f"{resolved.network} on {resolved.data}, a smoke test in place of {resolved.title}"
        resolved = replace(resolved, title=title)
    return ExperimentRun(given.name, resolved, given.literature)


def _with_paper(row: Mapping[str, Any], prefix: str | None, where: str) -> dict[str, Any]:
    """The row with the key of its published figures, unless it has its own (or `paper: null`, for none)."""
    if "paper" in row or prefix is None:
        return dict(row)
    key = f"{prefix}/{row['name']}"
    if key not in PUBLISHED:
        raise SettingsError(f"{where}: {unknown_name('row of the paper', key, list(PUBLISHED))}")
    return {**row, "paper": key}


def _folder() -> Path:
    return Path(str(importlib.resources.files("lipgraft") / "experiments"))


def expanded_rows(rows: Iterable[Any], named: Mapping[str, Row], *, smoke: bool, where: str) -> list[Row]:
    """Models of a recipe.

    A row is a name of `named`; or a mapping of a model's keys, over those of the row that `like` names, with changes
    for the smoke scale under `smoke`; and if it has a `grid` of dotted keys and their values, one model for each
    combination, with {key} in its name and title replaced by the value (see `_grid` for the smoke scale).
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
    return [own] if grid is None else _grid(own, grid, smoke, where)


def _like(name: str, named: Mapping[str, Row], where: str) -> Row:
    if name not in named:
        raise SettingsError(f"{where}: {unknown_name('row', name, list(named))}")
    return named[name]


def _grid(row: Row, grid: Any, smoke: bool, where: str) -> list[Row]:
    """One row for each combination of values; at the smoke scale the first and the last of many numbers will do."""
    if not isinstance(grid, Mapping) or not all(isinstance(values, list) and values for values in grid.values()):
        raise SettingsError(f"{where}: a grid must give a list of values for each dotted key, got {grid!r}.")
    found = []
    for values in itertools.product(*(_ends(column) if smoke else column for column in grid.values())):
        new = row
        for key, value in zip(grid, values, strict=True):
            new = over(new, nested(key, value))
        words = {key.rpartition(".")[2]: value for key, value in zip(grid, values, strict=True)}
        name, title = (_filled(str(row.get(key, row["name"])), words, where) for key in ("name", "title"))
        found.append({**new, "name": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"), "title": title})
    return found


def _ends(values: list[Any]) -> list[Any]:
    """Numbers between the first and the last take the same way through the code; names may not, and all stay."""
    numbers = all(isinstance(value, int | float) for value in values)
    return [values[0], values[-1]] if numbers and len(values) > 2 else values


def _filled(text: str, words: Mapping[str, Any], where: str) -> str:
    try:
        return text.format(**words)
    except (KeyError, IndexError):
        raise SettingsError(f"{where}: {text!r} may name {', '.join(f'{{{word}}}' for word in words)} alone.") from None
