"""The one table: a row per model, as text, for the console and the page, and as numbers, for programs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from lipgraft.report.results import ModelResult, Published, RunResults
from lipgraft.report.svg import number, percent


@dataclass(frozen=True)
class Column:
    """key: a measure of ModelResult and of the paper's row; share: shown in per cent; up: larger is better, or not."""

    key: str
    head: str
    help: str
    share: bool
    up: bool


COLUMNS = (
    Column("sa", "SA %", "Standard accuracy: right on the image itself.", True, True),
    Column("ra", "RA %", "Robust accuracy: right under the attack.", True, True),
    Column("va", "VA %", "Verified accuracy: proved right everywhere in the box.", True, True),
    Column("unr", "UNR %", "Unstable neurons, mean over images; grafted ones never count.", True, False),
    Column("lipschitz", "Lipschitz", "Local Lipschitz constant, mean over images.", False, False),
    Column("time", "Time s", "Mean seconds over the images that reach the verifier.", False, False),
)


@dataclass(frozen=True)
class Cell:
    """text: ours; paper: the published figure, or empty; best: no model of the run does better."""

    text: str
    paper: str
    best: bool


@dataclass(frozen=True)
class Row:
    model: ModelResult
    cells: tuple[Cell, ...]


def rows(results: RunResults) -> list[Row]:
    """The table as text. Where the recipe names rows of the paper, each cell has the published figure too."""
    best = {column.key: _best(results, column) for column in COLUMNS}
    return [Row(m, tuple(_cell(m, column, best[column.key]) for column in COLUMNS)) for m in results.models]


def headline(results: RunResults) -> str:
    """One true sentence: what grafting did to the share of proved images, or which model has the largest."""
    before, grafted = results.models[0], [m for m in results.models if m.grafted]
    proved = f"{percent(before.va)} % of the {results.counts.get('certified', 0)} images"
    if not grafted:
        return f"{before.title} is proved robust at eps {results.radius} on {proved}."
    after = max(grafted, key=lambda m: m.va)
    if before.grafted:  # nothing to compare grafting with
        return (
            f"The most images proved robust at eps {results.radius}: {percent(after.va)} % by {after.title}, "
            f"at a standard accuracy of {percent(after.sa)} %."
        )
    moved = "raises" if after.va > before.va else "leaves" if after.va == before.va else "lowers"
    change = (
        f"at {percent(after.va)} %" if moved == "leaves" else f"from {percent(before.va)} % to {percent(after.va)} %"
    )
    return (
        f"Grafting ({after.title}) {moved} the share of images proved robust at eps {results.radius} {change}, "
        f"while standard accuracy goes from {percent(before.sa)} % to {percent(after.sa)} %."
    )


def summary(results: RunResults) -> dict[str, Any]:
    """The table for programs: shares in [0, 1], seconds, Lipschitz constants by notion; None for NaN and infinity."""
    table: dict[str, Any] = _known(
        {
            "name": results.name,
            "data": results.data,
            "network": results.network,
            "eps": results.eps,
            "counts": dict(results.counts),
            "lipschitz_units": results.lipschitz_units,
            "models": [
                {
                    "name": m.name,
                    "title": m.title,
                    **{column.key: measure(m, column.key) for column in COLUMNS if column.key != "lipschitz"},
                    "lipschitz": dict(m.lipschitz),
                    "margin": m.margin,
                    "verdicts": {s: m.count(s) for s in sorted({i.status for i in m.images})},
                    "grafted": sum(layer.grafted for layer in m.layers),
                    "neurons": sum(layer.neurons for layer in m.layers),
                    "seconds": dict(m.seconds),
                    "published": None if m.published is None else asdict(m.published),
                }
                for m in results.models
            ],
        }
    )
    return table


def _known(value: Any) -> Any:
    """The value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    return [_known(item) for item in value] if isinstance(value, list) else value


def measure(model: ModelResult, key: str) -> float:
    """One measure of a model; for the Lipschitz constant, that of the first notion."""
    if key == "lipschitz":
        return next(iter(model.lipschitz.values()), math.nan)
    value: float = getattr(model, key)
    return value


def _best(results: RunResults, column: Column) -> float:
    values = [v for m in results.models if math.isfinite(v := measure(m, column.key))]
    return (max if column.up else min)(values) if values else math.nan


def _cell(model: ModelResult, column: Column, best: float) -> Cell:
    value = measure(model, column.key)
    paper = "" if model.published is None else published_cell(model.published, column)
    return Cell(percent(value) if column.share else number(value), paper, value == best)


def published_cell(figures: Published, column: Column) -> str:
    """A published figure as the table shows it; empty where the paper has none."""
    value: float | None = getattr(figures, column.key)
    return "" if value is None else f"{value:.1f}" if column.share else number(value)
