"""The figure of the overview: for each published row a line from the paper's verified accuracy to ours.

A file of its own, which pages show as an image: it brings its style along, with a ground under it, for both colour
schemes. The paper's marks are hollow circles, ours filled diamonds, so that no colour is needed to tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from lipgraft.report.overview import Overview, PaperRow, PaperRun
from lipgraft.svg import Scale, bar, dot, line, path, tag, text

COLUMN, GAP, TOP, BOTTOM = 454.0, 20.0, 62.0, 26.0
ROW, HEAD, REST = 17.0, 24.0, 10.0
"""Heights of a row, of the name above a panel, and of the space below it."""
LEFT, RIGHT = 184.0, 100.0
"""Room beside the marks for the rows' names and for their figures."""
TICKS = 0, 25, 50, 75, 100

LIGHT = {"page": "#ffffff", "ink": "#16191d", "soft": "#59616c", "line": "#e2e5ea", "ours": "#2563eb"}
DARK = {"page": "#0d1117", "ink": "#eceff3", "soft": "#a2abb7", "line": "#2c323b", "ours": "#6ea8fe"}
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif'


def overview_figure(overview: Overview) -> str:
    """SVG, as the text of a file."""
    columns = _columns(overview.panels)
    width = len(columns) * (COLUMN + GAP) - GAP + 24
    bottom = TOP + max(sum(map(_height, column)) for column in columns)
    parts = [tag("rect", width=width, height=bottom + BOTTOM, class_="page"), *_legend()]
    for i, column in enumerate(columns):
        parts += _column(column, 12 + i * (COLUMN + GAP))
    label = "Verified accuracy of every row, published and ours, in per cent"
    size = {"viewBox": f"0 0 {width:.0f} {bottom + BOTTOM:.0f}", "width": width, "height": bottom + BOTTOM}
    body = Markup("").join([tag("style", Markup(_style())), *parts])
    return str(tag("svg", body, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=label, **size)) + "\n"


def _style() -> str:
    def rules(colours: dict[str, str]) -> str:
        return (
            f".page{{fill:{colours['page']}}}text{{fill:{colours['ink']}}}.m{{fill:{colours['soft']}}}"
            f".g{{stroke:{colours['line']}}}.k{{stroke:{colours['soft']};stroke-width:1.5}}"
            f".h{{fill:{colours['page']};stroke:{colours['ink']};stroke-width:1.6}}"
            f".o{{fill:{colours['ours']}}}.r{{fill:{colours['ours']};opacity:.4}}"
        )

    fonts = f"text{{font:12px {FONT}}}.b{{font-weight:600}}.v{{font-variant-numeric:tabular-nums}}"
    return f"{fonts}{rules(LIGHT)}@media (prefers-color-scheme:dark){{{rules(DARK)}}}"


def _height(panel: PaperRun) -> float:
    return HEAD + ROW * len(panel.rows) + REST


def _columns(panels: Sequence[PaperRun]) -> list[list[PaperRun]]:
    """Two columns of about the same height, read one after the other."""
    half = sum(map(_height, panels)) / 2
    first: list[PaperRun] = []
    while len(first) < len(panels) and sum(map(_height, first)) + _height(panels[len(first)]) / 2 <= half:
        first.append(panels[len(first)])
    return [column for column in (first, list(panels[len(first) :])) if column]


def _legend() -> list[Markup]:
    return [
        text(12, 22, "Verified accuracy, %", "b"),
        dot(170, 18, 4.5, "h", "paper"),
        text(181, 22, "paper"),
        _diamond(236, 18, "ours"),
        text(247, 22, "ours; a band behind it: from the lowest seed to the highest"),
    ]


def _column(panels: Sequence[PaperRun], left: float) -> list[Markup]:
    x = Scale(0, 100, left + LEFT, left + COLUMN - RIGHT)
    parts: list[Markup] = []
    y = TOP
    for panel in panels:
        parts.append(text(left, y + 15, panel.title, "b"))
        end = y + HEAD + ROW * len(panel.rows)
        parts += [line(x(tick), y + HEAD - 2, x(tick), end, "g") for tick in TICKS]
        for i, row in enumerate(panel.rows):
            parts += _row(row, x, left, y + HEAD + ROW * (i + 0.5))
        y += _height(panel)
    for at in (TOP - 8, y + 8):
        parts += [text(x(tick), at, tick, "m", "middle") for tick in TICKS]
    parts.append(text(left + COLUMN, TOP - 8, "paper → ours", "m", "end"))
    return parts


def _row(row: PaperRow, x: Scale, left: float, y: float) -> list[Markup]:
    paper, ours = row.published.va, row.ours("va")
    parts = [text(left + LEFT - 10, y + 4, row.title, "t", "end")]
    if paper is not None and ours is not None:
        parts.append(line(x(paper), y, x(ours[0]), y, "k"))
    if ours is not None and ours[1] < ours[2]:
        hint = f"{row.title}, ours: {ours[1]:.1f} to {ours[2]:.1f} over {len(row.found)} seeds"
        parts.append(bar(x(ours[1]), y - 8, max(x(ours[2]) - x(ours[1]), 2.0), 16, "r", hint))
    if paper is not None:
        parts.append(dot(x(paper), y, 4.5, "h", f"{row.title}, paper: {paper:.1f}"))
    if ours is not None:
        parts.append(_diamond(x(ours[0]), y, f"{row.title}, ours: {ours[0]:.1f}"))
    shown = "–" if paper is None else f"{paper:.1f}"
    words = f"{shown} not run" if ours is None else f"{shown} → {ours[0]:.1f}"
    parts.append(text(left + COLUMN, y + 4, words, "m v" if ours is None else "v", "end"))
    return parts


def _diamond(x: float, y: float, hint: str) -> Markup:
    return path([(x - 5, y), (x, y - 5), (x + 5, y), (x, y + 5)], "o", closed=True, hint=hint)
