"""Models side by side: accuracies, the trade-off between accuracy and proof, the Lipschitz constant by notion."""

from __future__ import annotations

import math

from markupsafe import Markup

from lipgraft.report.charts import sweep
from lipgraft.report.charts.registry import colour, figure, many
from lipgraft.report.results import ModelResult, RunResults
from lipgraft.svg import WIDTH, Scale, bar, beside, dot, drawing, line, number, path, percent, text

MEASURES = (("sa", "SA", "standard"), ("ra", "RA", "robust"), ("va", "VA", "verified"))


@figure(
    "accuracy",
    "Accuracy: standard, robust, verified",
    "SA: right on the image itself. RA: still right after the attack at eps {eps}. VA: proved right for every "
    "perturbation up to eps. VA cannot exceed RA on the same images.",
)
def accuracy(results: RunResults) -> Markup | None:
    if many(results):
        return sweep.accuracies(results.models, MEASURES)
    top, bottom, left, right = 18.0, 200.0, 34.0, WIDTH - 4.0
    y = Scale(0, 1, bottom, top)
    parts = [_share_axis(y, left, right)]
    group = (right - left) / len(MEASURES)
    width = min(30.0, (group - 18) / len(results.models))
    for i, (key, short, word) in enumerate(MEASURES):
        centre = left + group * (i + 0.5)
        start = centre - width * len(results.models) / 2
        for j, model in enumerate(results.models):
            share: float = getattr(model, key)
            if not math.isfinite(share):
                continue
            x = start + j * width
            hint = f"{model.title}: {word} accuracy {percent(share)} %"
            parts.append(bar(x + 1, y(share), width - 2, bottom - y(share), colour(results, model), hint))
            parts.append(text(x + width / 2, y(share) - 4, percent(share, 0), "v", "middle"))
        parts.append(text(centre, bottom + 18, f"{short}, {word}", "t", "middle"))
        counts = sorted({model.over[key] for model in results.models if key in model.over})
        if counts:
            parts.append(
                text(
                    centre,
                    bottom + 33,
                    f"of {' to '.join(map(str, counts[:: len(counts) - 1 or 1]))} images",
                    "m",
                    "middle",
                )
            )
    return drawing(bottom + 42, "Standard, robust and verified accuracy of each model, in per cent", *parts)


@figure(
    "tradeoff",
    "What a proof costs",
    "Up is more proved, right is more accurate: the corner at the top right is where one wants to be.{paper}",
    sweep="Up is more proved, right is more accurate. The line joins the models that no other one beats in both. "
    "Colours repeat; a hint names each model.{paper}",
)
def tradeoff(results: RunResults) -> Markup | None:
    found = [(m, m.sa, m.va) for m in results.models if math.isfinite(m.sa) and math.isfinite(m.va)]
    paper = [
        (m, m.published.sa / 100, m.published.va / 100)
        for m in results.models
        if m.published is not None and m.published.sa is not None and m.published.va is not None
    ]
    if not found:
        return None
    points = found + paper
    top, bottom, left, right = 26.0, 214.0, 44.0, WIDTH - 14.0
    x = _padded([sa for _, sa, _ in points], left, right)
    y = _padded([va for _, _, va in points], bottom, top)
    parts = []
    for tick in y.ticks(5):
        parts += [line(left, y(tick), right, y(tick), "g"), text(left - 6, y(tick) + 4, percent(tick, 0), "m", "end")]
    for tick in x.ticks(5):
        parts.append(text(x(tick), bottom + 16, _trimmed(tick), "m", "middle"))
    parts.append(line(left, bottom, right, bottom, "a"))
    parts.append(text((left + right) / 2, bottom + 34, "standard accuracy, %", "m", "middle"))
    parts.append(text(left - 30, 12, "verified accuracy, %", "m"))
    for model, sa, va in paper:
        hint = f"paper, {model.title}: SA {percent(sa)} %, VA {percent(va)} %"
        parts.append(dot(x(sa), y(va), 6, f"h {colour(results, model)}", hint))
    named = front(found) if many(results) else found
    if many(results):
        parts.append(path([(x(sa), y(va)) for _, sa, va in named], "l c0"))
    for model, sa, va in found:
        hint = f"{model.title}: SA {percent(sa)} %, VA {percent(va)} %"
        parts.append(dot(x(sa), y(va), 6, colour(results, model), hint))
    dots = [(x(sa), y(va)) for _, sa, va in points]
    places = beside([(x(sa), y(va), model.title) for model, sa, va in named], dots, (0.0, WIDTH, 16.0, bottom))
    parts += [
        text(place[0], place[1], model.title, "t") for (model, _, _), place in zip(named, places, strict=True) if place
    ]
    return drawing(bottom + 42, "Standard against verified accuracy", *parts)


@figure(
    "lipschitz",
    "How far an output can move: local Lipschitz constant",
    "Mean over images, in units of {units} values, by notion; the axis is logarithmic. sampled is a lower bound found "
    "by search, the others are sound upper bounds or, for output-width, the width of the bounded output over 2 eps.",
    sweep="Mean over images, in units of {units} values, by notion; the axis is logarithmic. Colours repeat; a hint "
    "names each model.",
)
def lipschitz(results: RunResults) -> Markup | None:
    notions = list(dict.fromkeys(notion for model in results.models for notion in model.lipschitz))
    values = [v for m in results.models for v in m.lipschitz.values() if math.isfinite(v) and v > 0]
    if not values:
        return None
    left, right, row, top = 112.0, WIDTH - 18.0, 42.0, 10.0
    bottom = top + row * len(notions)
    x = Scale(min(values) / 1.3, max(values) * 1.3, left, right, log=True)
    parts = [line(x(t), top - 4, x(t), bottom, "g") for t in x.ticks(5)]
    parts += [text(x(t), bottom + 16, number(t), "m", "middle") for t in x.ticks(5)]
    spread = min(8.0, 24.0 / len(results.models))  # so that equal values do not hide each other
    for i, notion in enumerate(notions):
        y = top + row * (i + 0.5)
        parts += [line(left, y, right, y, "g"), text(left - 8, y + 4, notion, "t", "end")]
        for j, model in enumerate(results.models):
            value = model.lipschitz.get(notion, math.nan)
            if math.isfinite(value) and value > 0:
                here = y + spread * (j - (len(results.models) - 1) / 2)
                hint = f"{model.title}, {notion}: {number(value)}"
                parts.append(dot(x(value), here, 5, colour(results, model), hint))
    return drawing(bottom + 24, "Local Lipschitz constant of each model by notion, logarithmic axis", *parts)


def front(points: list[tuple[ModelResult, float, float]]) -> list[tuple[ModelResult, float, float]]:
    """The points that no other one beats in both coordinates, from left to right."""
    kept: list[tuple[ModelResult, float, float]] = []
    for point in sorted(points, key=lambda p: (-p[1], -p[2])):
        if not kept or point[2] > kept[-1][2]:
            kept.append(point)
    return kept[::-1]


def _share_axis(y: Scale, left: float, right: float) -> Markup:
    """Grid lines and labels of an axis of shares from 0 to 1."""
    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line(left, y(tick), right, y(tick), "g" if tick else "a"))
        parts.append(text(left - 6, y(tick) + 4, percent(tick, 0), "m", "end"))
    return Markup("").join(parts)


def _padded(values: list[float], start: float, end: float) -> Scale:
    """A scale around shares, with some room, inside [0, 1] and never narrower than four points."""
    low, high = min(values), max(values)
    room = max(0.15 * (high - low), 0.02)
    return Scale(max(0.0, low - room), min(1.0, high + room), start, end)


def _trimmed(share: float) -> str:
    return percent(share).removesuffix(".0")
