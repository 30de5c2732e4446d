"""What notebooks show of results: small HTML tables, lines and charts, without styles or scripts of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markupsafe import Markup

from lipgraft.errors import SettingsError
from lipgraft.svg import LETTER, Scale, number, percent, tag

WIDTH, HEIGHT = 120, 24
"""Of a curve, in pixels."""


class Html(str):
    """Text that is HTML already."""


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; cells are escaped unless they are `Html`."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def curve(values: Sequence[float]) -> Html:
    """The values as a small line, from left to right; what is not finite is left out."""
    points = [(i, value) for i, value in enumerate(values) if math.isfinite(value)]
    if len(points) < 2:
        return Html("")
    low, high = min(v for _, v in points), max(v for _, v in points)
    across, up = WIDTH / points[-1][0], (HEIGHT - 4) / ((high - low) or 1.0)
    path = " ".join(f"{i * across:.1f},{HEIGHT - 2 - (v - low) * up:.1f}" for i, v in points)
    line = f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    label = f"from {points[0][1]:.3g} to {points[-1][1]:.3g}"
    return Html(f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}">{line}</svg>')


@dataclass(frozen=True)
class Chart:
    """A drawing as SVG. A notebook shows it; `save` writes it into a file."""

    title: str
    svg: str

    def __repr__(self) -> str:
        return f"<Chart: {self.title}; .save('chart.svg') writes it>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.svg, encoding="utf-8")


HUES = "#2563eb", "#d97706", "#0d9488", "#9333ea", "#db2777", "#65a30d", "#7b8594"
"""Of a chart's lines, in turn; they show on white and on black."""


def chart(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    across: str,
    up: str,
    log: bool = False,
    share: bool = False,
) -> Chart:
    """One line for each name, through its points (x, y); what is not finite is left out.

    across, up: what the axes say. log: equal ratios of x are equal distances, and only x > 0 can be shown. share: y is
    told in per cent.
    """
    known = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log)]
        for name, points in series.items()
    }
    known = {name: points for name, points in known.items() if points}
    if not known:
        raise SettingsError(f"{title}: there is nothing to plot.")
    told = percent if share else number
    xs, ys = ([point[i] for points in known.values() for point in points] for i in (0, 1))
    left, right = 52.0, 470.0
    places, legend = _legend(list(known), left, right)
    top, bottom = legend + 14, legend + 192
    x, y = Scale(min(xs), max(xs), left, right, log=log), Scale(min(0.0, *ys), max(ys), bottom, top)
    parts = [_words(left, 18.0, f"{title}, {up}" if up else title, font_weight="bold")]
    for tick in y.ticks(5):
        parts.append(_line(left, y(tick), right, y(tick), 0.2))
        parts.append(_words(left - 6, y(tick) + 4, percent(tick, 0) if share else number(tick), text_anchor="end"))
    parts += [_words(x(tick), bottom + 17, number(tick), text_anchor="middle") for tick in x.ticks(6)]
    parts += [_line(left, bottom, right, bottom, 0.6), _words(right, bottom + 36, across, text_anchor="end")]
    for i, ((name, points), place) in enumerate(zip(known.items(), places, strict=True)):
        hue = HUES[i % len(HUES)]
        way = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        hint = tag("title", f"{name}: {told(points[0][1])} to {told(points[-1][1])}")
        parts.append(
            tag("polyline", hint, points=way, fill="none", stroke=hue, stroke_width=2, stroke_linejoin="round")
        )
        parts.append(_words(*place, name, style=f"fill:{hue}"))
    high = round(bottom + 44)
    label = f"{title}: {up} against {across}"
    size = {"viewBox": f"0 0 480 {high}", "width": 480, "height": high, "role": "img", "aria_label": label}
    look = {"xmlns": "http://www.w3.org/2000/svg", "fill": "currentColor", "font_size": 12, "font_family": "sans-serif"}
    return Chart(title, str(tag("svg", Markup("").join(parts), **size, **look)))


def _legend(names: Sequence[str], left: float, right: float) -> tuple[list[tuple[float, float]], float]:
    """Where each name stands, in as many rows as they need, and the height of the last row."""
    places, x, y = [], left, 38.0
    for name in names:
        wide = LETTER * len(name) + 14
        if x > left and x + wide > right:
            x, y = left, y + 16
        places.append((x, y))
        x += wide
    return places, y


def _words(x: float, y: float, words: str, **attributes: object) -> Markup:
    return tag("text", words, x=x, y=y, **attributes)


def _line(x1: float, y1: float, x2: float, y2: float, opacity: float) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="currentColor", opacity=opacity)


def _cell(cell: object) -> str:
    return str(cell) if isinstance(cell, Html) else escape(str(cell))
