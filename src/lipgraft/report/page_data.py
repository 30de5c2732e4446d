"""What the page's script knows: every verdict and figure of its runs, as JSON inside the page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from lipgraft.report.charts.registry import COLOURS
from lipgraft.report.results import STATUSES, ImageResult, RunResults
from lipgraft.report.table import COLUMNS, held_out, measure

FORMAT = 1
"""Of this JSON: a page compares itself only with pages of the same one."""


def page_data(runs: Sequence[tuple[str, RunResults]]) -> Markup:
    """JSON for a script element. runs: each with the prefix of its names on the page."""
    content = {
        "format": FORMAT,
        "colours": COLOURS,
        "statuses": STATUSES,
        "columns": [{"head": column.head, "share": column.share} for column in COLUMNS],
        "runs": [_run(key, results) for key, results in runs],
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # so that no name can end the element


def _run(key: str, results: RunResults) -> dict[str, Any]:
    images = [image for model in results.models for image in model.images]
    words = sorted({word for image in images for word in (image.method, image.reason) if word})
    place = {word: i for i, word in enumerate(words)}
    return {
        "key": key,
        "title": results.title,
        "data": results.data,
        "held_out": held_out(results),
        "radius": results.radius,
        "classes": results.classes,
        "words": words,
        "models": [
            {
                "title": model.title,
                "values": [_short(measure(model, column.key), 6) for column in COLUMNS],
                "images": [_image(image, place) for image in model.images],
            }
            for model in results.models
        ],
    }


def _image(image: ImageResult, place: dict[str, int]) -> list[float | None]:
    """index, label, status, method, reason, seconds, margin; words by their place, -1 for none."""
    words = [place.get(word or "", -1) for word in (image.method, image.reason)]
    numbers = [_short(image.seconds), None if image.margin is None else _short(image.margin)]
    return [image.index, image.label, STATUSES.index(image.status), *words, *numbers]


def _short(value: float, digits: int = 3) -> float | None:
    """The value to a few significant digits; None for NaN and infinity, which JSON does not have."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
