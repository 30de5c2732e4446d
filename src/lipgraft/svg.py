"""Small drawings as SVG text. Colours come from the page's CSS classes, so that both colour schemes fit."""

from __future__ import annotations

import math

from markupsafe import Markup, escape

WIDTH = 420
"""Of every drawing, in its own units; the page scales it to about this many pixels, also on a phone."""
LETTER = 6.4
"""About the width of a letter, in the same units."""


def tag(name: str, content: object = None, **attributes: object) -> Markup:
    """One element. `class_` gives class, `stroke_width` gives stroke-width; numbers are rounded to 1/100."""
    text = ""
    for key, value in attributes.items():
        shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(value)
        text += f' {key.rstrip("_").replace("_", "-")}="{shown}"'
    return Markup(f"<{name}{text}/>" if content is None else f"<{name}{text}>{escape(content)}</{name}>")


def text(x: float, y: float, words: object, class_: str = "", anchor: str = "start") -> Markup:
    """Words at a point; anchor: start, middle or end."""
    return tag("text", words, x=float(x), y=float(y), class_=class_ or "t", text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def bar(x: float, y: float, width: float, height: float, class_: str, hint: str) -> Markup:
    """A rectangle with a hint that shows under the pointer."""
    size = {"width": float(max(width, 0.0)), "height": float(max(height, 0.0))}
    return tag("rect", tag("title", hint), x=float(x), y=float(y), rx=1.5, class_=class_, **size)


def dot(x: float, y: float, radius: float, class_: str, hint: str) -> Markup:
    return tag("circle", tag("title", hint), cx=float(x), cy=float(y), r=float(radius), class_=class_)


def path(points: list[tuple[float, float]], class_: str, *, closed: bool = False, hint: str = "") -> Markup:
    steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", tag("title", hint) if hint else None, d=f"M{steps}{' Z' if closed else ''}", class_=class_)


def drawing(height: float, label: str, *parts: Markup) -> Markup:
    """A whole drawing; label: what a screen reader says."""
    body = Markup("").join(parts)
    return tag("svg", body, viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_label=escape(label))


class Scale:
    """From values to positions along one axis. log: equal ratios are equal distances (values must be > 0)."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        self.log = log
        self.low, self.high = self._value(low), self._value(high)
        if not self.high > self.low:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (self._value(value) - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside the range, about `count` of them."""
        return _log_ticks(self.low, self.high, count) if self.log else _round_ticks(self.low, self.high, count)

    def _value(self, value: float) -> float:
        return math.log10(value) if self.log else value


def _round_ticks(low: float, high: float, count: int) -> list[float]:
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    """Powers of ten; with 2 and 5 between them when the range is short."""
    factors = (1.0,) if high - low > 2 else (1.0, 2.0, 5.0)
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = max(1, math.ceil((high - low) / count)) if len(factors) == 1 else 1
    ticks = [f * 10.0**d for d in decades if d % every == 0 for f in factors]
    return [t for t in ticks if low - 1e-9 <= math.log10(t) <= high + 1e-9]


def apart(positions: list[float], gap: float = 15.0) -> list[float]:
    """The positions moved downward as far as needed so that labels there do not touch."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    moved, last = list(positions), -math.inf
    for i in order:
        moved[i] = last = max(positions[i], last + gap)
    return moved


def beside(
    labels: list[tuple[float, float, str]],
    dots: list[tuple[float, float]],
    frame: tuple[float, float, float, float],
) -> list[tuple[float, float] | None]:
    """Where each label starts, beside its dot (x, y, words), so that it hides no dot and no other label.

    frame: left, right, top, bottom. None where there is no such place; the legend or the hint has the name.
    """
    taken = [(x - 7, x + 7, y - 7, y + 7) for x, y in dots]
    places: list[tuple[float, float] | None] = []
    for x, y, words in labels:
        wide = LETTER * len(words)
        offers = [(x + 11, y + 4), (x - 11 - wide, y + 4), (x - wide / 2, y - 11), (x - wide / 2, y + 20)]
        boxes = [(left, left + wide, base - 11, base + 3) for left, base in offers]
        free = (
            place
            for place, box in zip(offers, boxes, strict=True)
            if _inside(box, frame) and not any(_meet(box, other) for other in taken)
        )
        place = next(free, None)
        places.append(place)
        if place is not None:
            taken.append((place[0], place[0] + wide, place[1] - 11, place[1] + 3))
    return places


def _inside(box: tuple[float, float, float, float], frame: tuple[float, float, float, float]) -> bool:
    return frame[0] <= box[0] and box[1] <= frame[1] and frame[2] <= box[2] and box[3] <= frame[3]


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def number(value: float) -> str:
    """A value with the digits a reader wants: 0.034, 1.2, 12, 3,400, 2e+06."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1e5 or 0 < size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}".rstrip("0").rstrip(".")


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}" if math.isfinite(share) else "–"
