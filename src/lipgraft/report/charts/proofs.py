"""The proofs: how far above zero the certified margins are, and how fast images are verified."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from lipgraft.report.charts import sweep
from lipgraft.report.charts.registry import colour, figure, many
from lipgraft.report.results import VERIFIED, RunResults
from lipgraft.svg import WIDTH, Scale, apart, bar, drawing, line, number, path, percent, text

BINS = 40


@figure(
    "margins",
    "Certified margins",
    "For each correctly classified image, the {method} lower bound of (true logit - best other logit) over the box: "
    "right of zero the image is proved by this bound alone. Values beyond the axis are in its outermost bars.",
    sweep="The {method} lower bound of (true logit - best other logit) over the box, for each correctly classified "
    "image: median, quartiles, and the range from 5 % to 95 %. Right of zero the image is proved by this bound alone.",
)
def margins(results: RunResults) -> Markup | None:
    if many(results):
        return sweep.margins(results.models)
    finite = {m.name: [v for v in m.margins if math.isfinite(v)] for m in results.models}
    everything = np.array([v for values in finite.values() for v in values])
    if not len(everything):
        return None
    low = min(float(np.quantile(v, 0.05)) for v in finite.values() if v)
    high = max(float(np.quantile(v, 0.99)) for v in finite.values() if v)
    edges = _edges(min(low, -0.05 * abs(high)), max(high, 0.05 * abs(low), 1e-6))
    low, high = float(edges[0]), float(edges[-1])
    left, right, row, top = 8.0, WIDTH - 8.0, 50.0, 4.0
    models = [model for model in results.models if finite[model.name]]
    bottom = top + row * len(models)
    x = Scale(low, high, left, right)
    parts = [line(x(0), top, x(0), bottom, "k")]
    parts += [text(x(tick), bottom + 15, number(tick), "m", "middle") for tick in x.ticks(6)]
    for i, model in enumerate(models):
        values = np.clip(finite[model.name], low, high)
        counts, _ = np.histogram(values, edges)
        base = top + row * (i + 1) - 2
        tall = Scale(0, max(int(counts.max()), 1), base, base - row + 16)
        for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True):
            if count:
                proved = "" if start >= 0 else " f"
                hint = f"{model.title}: {count} images between {number(float(start))} and {number(float(end))}"
                size = (x(float(end)) - x(float(start)) - 0.8, base - tall(int(count)))
                parts.append(bar(x(float(start)), tall(int(count)), *size, colour(results, model) + proved, hint))
        share = sum(v > 0 for v in finite[model.name]) / len(model.margins)
        words = f"{model.title}: {percent(share, 0)} % above 0, mean {number(model.margin)}"
        parts.append(text(left, base - row + 16, words, "t"))
        parts.append(line(left, base, right, base, "g"))
    return drawing(bottom + 22, "Distribution of certified margins of each model", *parts)


@figure(
    "time",
    "Verified within a time",
    "Share of the {count} images proved robust when each may take this many seconds; the axis is logarithmic.",
    sweep="Share of the {count} images proved robust when each may take this many seconds; the axis is logarithmic. "
    "Colours repeat; a hint names each model.",
)
def verified_versus_time(results: RunResults) -> Markup | None:
    times = {
        m.name: sorted(max(i.seconds, 1e-4) for i in m.images if i.status == VERIFIED)
        for m in results.models
        if m.images
    }
    proved = [t for values in times.values() for t in values]
    if not proved:
        return None
    longest = max([*proved, *(i.seconds for m in results.models for i in m.images)])
    x = Scale(min(proved) / 1.5, max(longest, min(proved) * 10), LEFT, RIGHT, log=True)
    return _steps(results, times, x, "seconds per image")


@figure(
    "clock",
    "Verified by the clock",
    "Share of the {count} images proved robust so many seconds after the certification of all of them began.",
    sweep="Share of the {count} images proved robust so many seconds after the certification of all of them began. "
    "Colours repeat; a hint names each model.",
)
def verified_by_the_clock(results: RunResults) -> Markup | None:
    times = {m.name: known for m in results.models if (known := m.proved_at) is not None}
    if not any(times.values()):
        return None
    longest = max(m.last for m in results.models if m.last is not None)
    return _steps(results, times, Scale(0, longest, LEFT, RIGHT), "seconds since the certification began")


LEFT, RIGHT = 38.0, WIDTH - 40.0
"""Ends of the time axis of `_steps`."""


def _steps(results: RunResults, times: Mapping[str, Sequence[float]], x: Scale, label: str) -> Markup:
    """The share of a model's images that are proved by a time. times: of each proved image, in order, by model."""
    top, bottom = 10.0, 200.0
    highest = max(len(times[m.name]) / len(m.images) for m in results.models if m.name in times)
    y = Scale(0, min(1.0, highest * 1.15), bottom, top)
    parts = []
    for tick in y.ticks(5):
        parts += [line(LEFT, y(tick), RIGHT, y(tick), "g"), text(LEFT - 6, y(tick) + 4, percent(tick, 0), "m", "end")]
    for tick in x.ticks(5):
        parts.append(text(x(tick), bottom + 16, number(tick), "m", "middle"))
    parts.append(line(LEFT, bottom, RIGHT, bottom, "a"))
    parts.append(text((LEFT + RIGHT) / 2, bottom + 34, label, "m", "middle"))
    ends: list[tuple[float, str]] = []
    for model in results.models:
        if model.name not in times:
            continue
        points = [(LEFT, y(0))]
        for i, seconds in enumerate(times[model.name], start=1):
            points += [(x(seconds), points[-1][1]), (x(seconds), y(i / len(model.images)))]
        points.append((RIGHT, points[-1][1]))
        proved = len(times[model.name])
        hint = f"{model.title}: {proved} of {len(model.images)} images"
        if proved:
            half, last = (number(times[model.name][at]) for at in ((proved - 1) // 2, -1))
            hint += f", half of these by {half} s, the last at {last} s"
        parts.append(path(points, f"l {colour(results, model)}", hint=hint))
        ends.append((points[-1][1], f"{proved / len(model.images):.0%}"))
    ends = [] if many(results) else ends  # so many labels would not fit
    for height, (_, words) in zip(apart([end for end, _ in ends], gap=12), ends, strict=True):
        parts.append(text(RIGHT + 4, height + 4, words, "v"))
    return drawing(bottom + 42, f"Share of images verified against {label}", *parts)


def _edges(low: float, high: float) -> NDArray[np.float64]:
    """Equal bins, one of whose edges is zero. low < 0 < high."""
    width = (high - low) / BINS
    return np.arange(math.floor(low / width), math.ceil(high / width) + 1, dtype=np.float64) * width
