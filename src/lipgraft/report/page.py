"""One self-contained HTML page from the results of a run."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass

import jinja2
import numpy as np
import yaml

from lipgraft.report.charts import drawn
from lipgraft.report.charts.registry import COLOURS, colour
from lipgraft.report.png import data_uri
from lipgraft.report.results import STATUSES, Example, RunResults
from lipgraft.report.svg import number
from lipgraft.report.table import COLUMNS, headline, rows
from lipgraft.version import __version__


@dataclass(frozen=True)
class Picture:
    """An image as the page shows it."""

    uri: str
    caption: str


@dataclass(frozen=True)
class Card:
    """One image with every model's verdict, and the counterexample of the first model that has one."""

    title: str
    pictures: tuple[Picture, ...]
    verdicts: tuple[tuple[str, str, str], ...]
    broken: str


def render(results: RunResults) -> str:
    """The page as text. It refers to nothing outside itself."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        importlib.resources.files("lipgraft.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    return template.render(
        results=results,
        headline=headline(results),
        columns=COLUMNS,
        rows=rows(results),
        has_paper=any(model.published is not None for model in results.models),
        figures=drawn(results),
        cards=[_card(results, example) for example in results.examples],
        colour=lambda model: colour(results, model),
        colours=range(COLOURS),
        notions=list(dict.fromkeys(notion for model in results.models for notion in model.lipschitz)),
        statuses=[s for s in STATUSES if any(model.count(s) for model in results.models)],
        number=number,
        settings=yaml.safe_dump(dict(results.settings), sort_keys=False, allow_unicode=True)
        if results.settings
        else "",
        version=__version__,
    )


def _card(results: RunResults, example: Example) -> Card:
    pictures = [Picture(data_uri(example.image), "original")]
    titles = {model.name: model.title for model in results.models}
    broken = next((v for v in example.verdicts if v.adversarial is not None), None)
    if broken is not None and broken.adversarial is not None:
        # Grey is no change; black and white are changes by eps.
        difference = (broken.adversarial - example.image) / (2 * results.eps) if results.eps else 0 * example.image
        pictures.append(Picture(data_uri(np.asarray(0.5 + difference)), "perturbation, enlarged"))
        pictures.append(Picture(data_uri(broken.adversarial), f"taken for {broken.taken_for}"))
    return Card(
        f"image {example.index}: {example.label}",
        tuple(pictures),
        tuple((titles[v.model], v.status, v.method or "") for v in example.verdicts),
        titles[broken.model] if broken is not None else "",
    )
