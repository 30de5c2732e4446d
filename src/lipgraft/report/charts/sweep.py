"""Figures for more models than there are colours, as in a sweep: one labelled line per model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from lipgraft.report.charts.registry import COLOURS
from lipgraft.report.results import LayerResult, ModelResult
from lipgraft.svg import LETTER, WIDTH, Scale, bar, dot, drawing, line, number, percent, text

ROW = 17.0
LONGEST = 26
"""Letters of a title; longer ones are cut, and whole under the pointer."""


def accuracies(models: Sequence[ModelResult], measures: Sequence[tuple[str, str, str]]) -> Markup:
    """SA, RA and VA of each model on one line."""
    left, right, top = _left(models), WIDTH - 12.0, 26.0
    bottom = top + ROW * len(models)
    x = Scale(0, 1, left, right)
    parts = _axis(x, top, bottom, lambda tick: percent(tick, 0))
    for i, (_, short, _) in enumerate(measures):
        parts.append(dot(left + 60.0 * i + 6, 10, 4.5, _mark(i), short))
        parts.append(text(left + 60.0 * i + 16, 14, short, "t"))
    for j, model in enumerate(models):
        y = top + ROW * (j + 0.5)
        parts.append(_name(model, left, y))
        for i, (key, _, word) in enumerate(measures):
            share: float = getattr(model, key)
            if math.isfinite(share):
                parts.append(dot(x(share), y, 4.5, _mark(i), f"{model.title}: {word} accuracy {percent(share)} %"))
    return drawing(bottom + 24, "Standard, robust and verified accuracy of each model, in per cent", *parts)


def margins(models: Sequence[ModelResult]) -> Markup | None:
    """A box from the first to the third quartile of each model's margins, a line from 5 % to 95 %, the median."""
    finite = {m.name: [v for v in m.margins if math.isfinite(v)] for m in models}
    shown = [m for m in models if finite[m.name]]
    if not shown:
        return None
    quantiles = {m.name: np.quantile(finite[m.name], (0.05, 0.25, 0.5, 0.75, 0.95)).tolist() for m in shown}
    left, right, top = _left(shown), WIDTH - 12.0, 6.0
    bottom = top + ROW * len(shown)
    low, high = min(q[0] for q in quantiles.values()), max(q[-1] for q in quantiles.values())
    x = Scale(min(low, 0.0), max(high, 0.0), left, right)
    parts = _axis(x, top, bottom, number)
    parts.append(line(x(0), top, x(0), bottom, "k"))
    for j, model in enumerate(shown):
        y = top + ROW * (j + 0.5)
        least, first, middle, third, most = quantiles[model.name]
        hint = f"{model.title}: median {number(middle)}, mean {number(model.margin)}"
        parts += [_name(model, left, y), line(x(least), y, x(most), y, "a")]
        parts.append(bar(x(first), y - 4.5, max(x(third) - x(first), 1.0), 9, "c2", hint))
        parts.append(line(x(middle), y - 6, x(middle), y + 6, "k"))
    return drawing(bottom + 24, "Quartiles of the certified margins of each model", *parts)


def layers(models: Sequence[ModelResult], share: Callable[[LayerResult], float], word: str, label: str) -> Markup:
    """A table of shares, models by layers, with a bar in each cell."""
    names = [layer.name for layer in models[0].layers]
    left, right, top = _left(models), WIDTH - 6.0, 22.0
    wide = (right - left) / len(names)
    largest = max([share(layer) for m in models for layer in m.layers if math.isfinite(share(layer))] + [0.05])
    parts = []
    for i, name in enumerate(names):
        parts.append(text(left + wide * i, 14, name[: max(3, int(wide / LETTER) - 1)], "m"))
    for j, model in enumerate(models):
        y = top + ROW * (j + 0.5)
        parts.append(_name(model, left, y))
        for i, layer in enumerate(model.layers):
            value = share(layer)
            long = (wide - 30) * value / largest if math.isfinite(value) else 0.0
            hint = f"{model.title}, {layer.name} ({layer.neurons:,} neurons): {percent(value)} % {word}"
            parts.append(bar(left + wide * i, y - 5, long, 10, "c2", hint))
            parts.append(text(left + wide * i + max(long, 0.0) + 3, y + 4, percent(value, 0), "s"))
    return drawing(top + ROW * len(models) + 6, label, *parts)


def _axis(x: Scale, top: float, bottom: float, words: Callable[[float], str]) -> list[Markup]:
    parts = [line(x(tick), top, x(tick), bottom, "g") for tick in x.ticks(5)]
    return parts + [text(x(tick), bottom + 16, words(tick), "m", "middle") for tick in x.ticks(5)]


def _left(models: Sequence[ModelResult]) -> float:
    return 12.0 + LETTER * max(min(len(model.title), LONGEST) for model in models)


def _name(model: ModelResult, left: float, y: float) -> Markup:
    short = model.title if len(model.title) <= LONGEST else model.title[: LONGEST - 1] + "…"
    return text(left - 8, y + 4, short, "t", "end")


def _mark(i: int) -> str:
    """The colours of SA, RA and VA: none of them that of a model in the other figures' legends."""
    return f"c{(0, 1, 2)[i] % COLOURS}"
