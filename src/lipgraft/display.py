"""What notebooks show of results: small HTML tables and lines, without styles or scripts of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

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


def _cell(cell: object) -> str:
    return str(cell) if isinstance(cell, Html) else escape(str(cell))
