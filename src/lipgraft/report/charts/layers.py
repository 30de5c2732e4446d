"""Layer by layer: which share is grafted, and how many neurons are unstable before and after."""

from __future__ import annotations

import math
from collections.abc import Callable

from markupsafe import Markup

from lipgraft.report.charts import sweep
from lipgraft.report.charts.registry import colour, figure, many
from lipgraft.report.results import LayerResult, ModelResult, RunResults
from lipgraft.svg import WIDTH, Scale, bar, drawing, line, percent, text

GAP = 12.0


@figure(
    "grafted",
    "Where the grafts are",
    "Share of each activation layer's neurons that were replaced by a line.",
    grafted_only=True,
)
def grafted(results: RunResults) -> Markup | None:
    models = [model for model in results.models if model.grafted]
    return _by_layer(results, models, lambda layer: layer.share, "grafted", "Grafted share of each layer")


@figure(
    "unstable",
    "Unstable neurons, layer by layer",
    "Share of neurons whose sign is undecided over the box of radius {eps}, mean over images. A tick marks a model "
    "right after grafting, before fine-tuning.",
    sweep="Share of neurons whose sign is undecided over the box of radius {eps}, mean over images.",
)
def unstable(results: RunResults) -> Markup | None:
    return _by_layer(
        results, list(results.models), lambda layer: layer.unr, "unstable", "Unstable share of each layer", ticks=True
    )


def _by_layer(
    results: RunResults,
    models: list[ModelResult],
    share: Callable[[LayerResult], float],
    word: str,
    label: str,
    *,
    ticks: bool = False,
) -> Markup | None:
    """Horizontal bars: one group per layer, one bar per model."""
    names = [layer.name for layer in models[0].layers] if models else []
    if not any(math.isfinite(share(layer)) for model in models for layer in model.layers):
        return None
    if many(results):
        return sweep.layers(models, share, word, label)
    left = 12.0 + 7.0 * max(len(name) for name in names)
    right, top = WIDTH - 34.0, 6.0
    thick = min(15.0, max(8.0, 150.0 / (len(names) * len(models))))
    group = thick * len(models) + GAP
    bottom = top + group * len(names)
    shares = [_largest(layer, share(layer), ticks) for m in models for layer in m.layers]
    largest = max([value for value in shares if math.isfinite(value)] + [0.05])
    x = Scale(0, min(1.0, largest * 1.05), left, right)
    parts = []
    for tick in x.ticks(4):
        parts += [line(x(tick), top, x(tick), bottom, "g"), text(x(tick), bottom + 15, percent(tick, 0), "m", "middle")]
    for i, name in enumerate(names):
        y = top + group * i + GAP / 2
        parts.append(text(left - 8, y + thick * len(models) / 2 + 4, name, "t", "end"))
        for j, model in enumerate(models):
            layer = next(one for one in model.layers if one.name == name)
            here = y + j * thick
            hint = f"{model.title}, {name} ({layer.neurons:,} neurons): {percent(share(layer))} % {word}"
            end = x(share(layer)) if math.isfinite(share(layer)) else left
            parts.append(bar(left, here + 0.5, end - left, thick - 1, colour(results, model), hint))
            parts.append(text(end + 4, here + thick - 1, percent(share(layer), 0), "s"))
            if ticks and layer.unr_grafted is not None and math.isfinite(layer.unr_grafted):
                parts.append(line(x(layer.unr_grafted), here - 0.5, x(layer.unr_grafted), here + thick + 0.5, "k"))
    parts.append(line(left, top, left, bottom, "a"))
    parts.append(text((left + right) / 2, bottom + 32, f"{word}, %", "m", "middle"))
    return drawing(bottom + 40, label, *parts)


def _largest(layer: LayerResult, value: float, ticks: bool) -> float:
    return max(value, layer.unr_grafted or 0.0) if ticks else value
