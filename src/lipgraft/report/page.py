"""One self-contained HTML page from the results of a run."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jinja2
import numpy as np
from markupsafe import Markup

from lipgraft import yaml_text
from lipgraft.report.charts import drawn
from lipgraft.report.charts.registry import COLOURS, Figure, colour, many
from lipgraft.report.page_data import page_data
from lipgraft.report.png import data_uri
from lipgraft.report.results import STATUSES, Example, ExampleVerdict, ExperimentResults, RunResults
from lipgraft.report.table import (
    COLUMNS,
    COUNTS,
    COUNTS_HELP,
    Row,
    checked,
    headline,
    other_images,
    published_cell,
    rows,
    spoken,
)
from lipgraft.svg import number
from lipgraft.version import __version__


@dataclass(frozen=True)
class Picture:
    """An image as the page shows it."""

    uri: str
    caption: str


@dataclass(frozen=True)
class Counterexample:
    """What breaks a model: the perturbation, enlarged, and the image it gives."""

    model: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Card:
    """One image with every model's verdict, and the counterexamples of those models that have one.

    counts: how many models gave each verdict, for when there are too many to name.
    """

    index: int
    title: str
    original: Picture
    broken: tuple[Counterexample, ...]
    verdicts: tuple[tuple[str, str, str], ...]
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Section:
    """One run as the page shows it. anchor: a prefix that makes its figures' names its own."""

    anchor: str
    results: RunResults
    headline: str
    rows: tuple[Row, ...]
    figures: tuple[Figure, ...]
    cards: tuple[Card, ...]
    notions: tuple[str, ...]
    statuses: tuple[str, ...]
    settings: str

    @property
    def many(self) -> bool:
        return many(self.results)

    @property
    def certified(self) -> bool:
        """Whether there is a verdict on any image."""
        return any(model.images for model in self.results.models)


def _lead(results: RunResults) -> str:
    """What the page says first: what grafting did, of what the proofs speak, and how many were checked."""
    sentences = headline(results), other_images(results), spoken(results), checked(results)
    return " ".join(sentence for sentence in sentences if sentence is not None)


def render(results: RunResults) -> str:
    """The page of one run as text. It refers to nothing outside itself."""
    notes = [f"Not finished: {', '.join(results.missing)}."] if results.missing else []
    return _page([_section(results, "")], title=results.title, lead=_lead(results), notes=notes)


def render_experiment(results: ExperimentResults) -> str:
    """The page of an experiment: all its runs, one summary."""
    notes = []
    if results.scale != "full":
        notes.append(f"Scale: {results.scale}. Another network on other data: these figures only show that it runs.")
    if results.missing:
        notes.append(f"Not finished: {', '.join(results.missing)}.")
    if results.changes:
        notes.append(f"Changed: {', '.join(f'{key} = {value}' for key, value in results.changes.items())}.")
    if results.command:
        notes.append(f"Made by: {results.command}")
    sections = [_section(run, f"{run.name}-") for run in results.runs]
    return _page(sections, title=results.title, lead=results.about, notes=notes)


def _page(sections: list[Section], *, title: str, lead: str, notes: Sequence[str] = ()) -> str:
    models = [model for section in sections for model in section.results.models]
    literature = any(section.results.literature for section in sections)
    return _template().render(
        title=title,
        lead=lead,
        notes=notes,
        sections=sections,
        columns=COLUMNS,
        counts=COUNTS,
        counts_help=COUNTS_HELP,
        has_paper=literature or any(model.published is not None for model in models),
        colour=colour,
        colours=range(COLOURS),
        number=number,
        published_cell=published_cell,
        compared=any(section.certified for section in sections),
        data=page_data([(section.anchor, section.results) for section in sections]),
        script=Markup(_file("page.js")),
        version=__version__,
    )


@cache
def _template() -> jinja2.Template:
    """Compiled once: that takes longer than filling in a small page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_file("page.html"))


def _section(results: RunResults, anchor: str) -> Section:
    settings = dict(results.settings)
    return Section(
        anchor=anchor,
        results=results,
        headline=_lead(results),
        rows=tuple(rows(results)),
        figures=tuple(drawn(results)),
        cards=tuple(_card(results, example) for example in results.examples),
        notions=tuple(dict.fromkeys(notion for model in results.models for notion in model.lipschitz)),
        statuses=tuple(s for s in STATUSES if any(model.count(s) for model in results.models)),
        settings=yaml_text.dump(settings) if settings else "",
    )


def _file(name: str) -> str:
    """The text of a file beside this one."""
    return importlib.resources.files("lipgraft.report").joinpath(name).read_text(encoding="utf-8")


def _card(results: RunResults, example: Example) -> Card:
    titles = {model.name: model.title for model in results.models}
    counts = ((status, sum(v.status == status for v in example.verdicts)) for status in STATUSES)
    return Card(
        example.index,
        f"image {example.index}: {example.label}",
        Picture(data_uri(example.image), "original"),
        tuple(
            Counterexample(titles[v.model], pictures)
            for v in example.verdicts
            if (pictures := _counterexample(results, example, v))
        ),
        tuple((titles[v.model], v.status, v.method or "") for v in example.verdicts),
        tuple((status, count) for status, count in counts if count),
    )


def _counterexample(results: RunResults, example: Example, verdict: ExampleVerdict) -> tuple[Picture, ...]:
    """The pictures of one; empty where there is none."""
    if verdict.adversarial is None:
        return ()
    # Grey is no change; black and white are changes by eps.
    difference = (verdict.adversarial - example.image) / (2 * results.eps) if results.eps else 0 * example.image
    return (
        Picture(data_uri(np.asarray(0.5 + difference)), "perturbation, enlarged"),
        Picture(data_uri(verdict.adversarial), f"taken for {verdict.taken_for}"),
    )
