"""The one table: a row per model, as text, for the console and the page, and as numbers, for programs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from lipgraft.errors import counted
from lipgraft.report.results import UNKNOWN, ModelResult, Published, RunResults
from lipgraft.svg import number, percent


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
    Column("ra", "RA %", "Robust accuracy: right under the attack, over the images it was tried on.", True, True),
    Column("va", "VA %", "Verified accuracy: proved right everywhere in the box.", True, True),
    Column("unr", "UNR %", "Unstable neurons, mean over images; grafted ones never count.", True, False),
    Column("lipschitz", "Lipschitz", "Local Lipschitz constant, mean over images.", False, False),
    Column("time", "Time s", "Mean seconds over the images that reach the verifier.", False, False),
)


COUNTS = ("Reached", "Open")
"""Heads of the last two columns: how many images reach the verifier, and how many of all end undecided and why."""
COUNTS_HELP = (
    "Reached: images for the verifier, correct and not broken by the attack. Open: left undecided, of all images, and "
    "why; an image whose time ends before or in the attack is open without having reached the verifier."
)


MOMENTS = {5: "5 s", 10: "10 s", 20: "20 s", 60: "1 min", 180: "3 min", 600: "10 min"}
"""Seconds of certification after which the verified share is told, where it is known, and their heads."""


@dataclass(frozen=True)
class Cell:
    """text: ours; over: how many images it speaks of, if known; paper: the published figure, or empty.

    best: no model of the run does better.
    """

    text: str
    over: int | None
    paper: str
    best: bool


@dataclass(frozen=True)
class Row:
    """counts: the texts under COUNTS."""

    model: ModelResult
    cells: tuple[Cell, ...]
    counts: tuple[str, str]


def rows(results: RunResults) -> list[Row]:
    """The table as text. Where the recipe names rows of the paper, each cell has the published figure too."""
    best = {column.key: _best(results, column) for column in COLUMNS}
    return [Row(m, tuple(_cell(m, column, best[column.key]) for column in COLUMNS), _counts(m)) for m in results.models]


def heads(results: RunResults) -> list[str]:
    """The heads of COLUMNS, each with the number of images where it is the same for all models."""
    return [_head(results, column) for column in COLUMNS]


def texts(results: RunResults, row: Row) -> list[str]:
    """A row under `heads`: ours, the number of images where models differ in it, the paper's figure in brackets."""
    out = []
    for column, cell in zip(COLUMNS, row.cells, strict=True):
        over = f" of {cell.over}" if column.key in OWN and _common(results, column) is None and cell.over else ""
        out.append(f"{cell.text}{over} ({cell.paper})" if cell.paper else f"{cell.text}{over}")
    return out


def over_time(results: RunResults) -> list[list[str]]:
    """Verified shares after the moments that are known of a model: heads, then a row for each model that knows one."""
    found = {model.title: {at: model.verified_after(at) for at in MOMENTS} for model in results.models}
    shown = [at for at in MOMENTS if any(shares[at] is not None for shares in found.values())]
    rows = [
        [title, *("" if (share := shares[at]) is None else percent(share) for at in shown)]
        for title, shares in found.items()
        if any(share is not None for share in shares.values())
    ]
    return [["model", *(MOMENTS[at] for at in shown)], *rows] if rows else []


def undecided(results: RunResults) -> str:
    """One sentence on the images that the verifier left open, for tables without columns for them."""
    words = "; ".join(f"{model.title} {_open(model)}" for model in results.models)
    return f"Left open, neither proved nor refuted: {words}."


def other_images(results: RunResults) -> str | None:
    """One sentence on the images that were measured; None where they are the first test images, as in the paper."""
    start = results.settings.get("certify", {}).get("start", 0)
    parts = ["Measured on held-out training images, not on test images."] if held_out(results) else []
    parts += [f"Certified from image number {start} on."] if start else []
    return " ".join(parts) or None


def held_out(results: RunResults) -> bool:
    """Whether the images are training images that were kept from training."""
    return bool(results.settings.get("measured_on") == "held-out")


def spoken(results: RunResults) -> str | None:
    """One sentence on what "proved" means in this run; None for runs of versions that did not say."""
    settings = results.settings.get("certify", {}).get("verifier", results.settings)
    if "arithmetic" not in settings:
        return None
    if settings["arithmetic"] == "fast":
        return "Proofs are in fast arithmetic: their own rounding is not accounted for."
    real = settings["speaks_of"] == "real"
    what = "in real numbers" if real else "as float32 hardware evaluates it, in any order of summation"
    return f"Proofs hold for the network {what}; their own rounding is accounted for."


def checked(results: RunResults) -> str | None:
    """One sentence on the proofs that were written down and checked; None where none were."""
    proofs = [model.proofs for model in results.models if model.proofs is not None]
    if not proofs:
        return None
    accepted, count = (sum(one[key] for one in proofs) for key in ("accepted", "count"))
    return f"{accepted} of {counted(count, 'proof')} checked by a program that shares no code with the verifier."


OWN = "sa", "ra", "va", "lipschitz"
"""Measures with a number of images of their own; that of the others is in the column Reached."""


def _head(results: RunResults, column: Column) -> str:
    count = _common(results, column) if column.key in OWN else None
    return column.head if count is None else f"{column.head} of {count}"


def _common(results: RunResults, column: Column) -> int | None:
    counts = {model.over.get(column.key) for model in results.models}
    return counts.pop() if len(counts) == 1 else None


def _counts(model: ModelResult) -> tuple[str, str]:
    reached = model.over.get("time")
    return "–" if reached is None else str(reached), _open(model)


def _open(model: ModelResult) -> str:
    """How many images are left open, of how many, and why. Those that reached the verifier can be fewer than these."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in model.reasons.items())
    return f"{model.count(UNKNOWN)} of {len(model.images)}" + (f" ({reasons})" if reasons else "")


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
                    "over": dict(m.over),
                    "verified_after": {str(at): share for at in MOMENTS if (share := m.verified_after(at)) is not None},
                    "unknown": m.reasons,
                    "proofs": None if m.proofs is None else dict(m.proofs),
                    "verdicts": {s: m.count(s) for s in sorted({i.status for i in m.images})},
                    "grafted": sum(layer.grafted for layer in m.layers),
                    "neurons": sum(layer.neurons for layer in m.layers),
                    "seconds": dict(m.seconds),
                    "made": [dict(one) for one in m.made],
                    "paper": m.paper,
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
    text = percent(value) if column.share else number(value)
    return Cell(text, model.over.get(column.key), paper, value == best)


def published_cell(figures: Published, column: Column) -> str:
    """A published figure as the table shows it; empty where the paper has none."""
    value: float | None = getattr(figures, column.key)
    return "" if value is None else f"{value:.1f}" if column.share else number(value)
