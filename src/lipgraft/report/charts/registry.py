"""The registry of figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from lipgraft.report.results import ModelResult, RunResults

Draw = Callable[[RunResults], Markup | None]


@dataclass(frozen=True)
class Figure:
    """A drawing with its heading, a sentence on how to read it, and the models its legend names."""

    key: str
    title: str
    caption: str
    drawing: Markup
    legend: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Entry:
    key: str
    title: str
    caption: str
    draw: Draw
    grafted_only: bool
    sweep: str


FIGURES: dict[str, Entry] = {}


def figure(
    key: str, title: str, caption: str, *, grafted_only: bool = False, sweep: str = ""
) -> Callable[[Draw], Draw]:
    """Register a drawing. caption may hold words of `drawn` in braces; grafted_only: its legend leaves others out.

    sweep: the caption for more models than there are colours, if it is another one.
    """

    def register(draw: Draw) -> Draw:
        FIGURES[key] = Entry(key, title, caption, draw, grafted_only, sweep or caption)
        return draw

    return register


def drawn(results: RunResults) -> list[Figure]:
    """The figures that this run has data for."""
    words = {
        "eps": results.radius,
        "count": results.counts.get("certified", 0),
        "method": results.margin_method.upper(),
        "units": results.lipschitz_units,
        "paper": " Hollow marks are the paper's figures." if any(m.published for m in results.models) else "",
    }
    figures = []
    for entry in FIGURES.values():
        drawing = entry.draw(results)
        if drawing is not None:
            legend = tuple(
                (colour(results, model), model.title)
                for model in results.models
                if (model.grafted or not entry.grafted_only) and not many(results)
            )
            caption = (entry.sweep if many(results) else entry.caption).format(**words)
            figures.append(Figure(entry.key, entry.title, caption, drawing, legend))
    return figures


def colour(results: RunResults, model: ModelResult) -> str:
    """The CSS class of a model's colour, the same in every figure; the first model is grey, the others have hues."""
    return f"c{next(i for i, m in enumerate(results.models) if m.name == model.name) % COLOURS}"


COLOURS = 7

MANY = COLOURS
"""More models than this share colours: then figures name them, or leave them to the hint under the pointer."""


def many(results: RunResults) -> bool:
    """Whether there are more models than colours, as in a sweep."""
    return len(results.models) > MANY
