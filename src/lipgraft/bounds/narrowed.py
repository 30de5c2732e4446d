"""What splits leave of the bounds of neurons, and the lines that follow.

A subproblem has few neurons whose bounds differ from those of its box, and all of them are open ones. So what the
subproblems of a box share is worked out once per box and copied; the rest is written over it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.implied import Implied
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.relaxations import Lines, relax
from lipgraft.bounds.splits import clamped


class Narrowed:
    """The neurons of B subproblems.

    open: (B, U), as in `NeuronBounds`; lower, upper: (B, U), of these.
    lines: of every activation that bends at zero alone, with CROWN's lower slopes; each (B, 1, 1, *shape).
    slopes: (B, N + 1), the lower slopes of these on the flat axis; anything for other activations.
    """

    def __init__(
        self,
        bounds: NeuronBounds,
        image: Tensor,
        neuron: Tensor,
        sign: Tensor,
        point: Tensor | None,
        implied: Implied | None,
    ) -> None:
        """See `LowerBound`."""
        self.layout = bounds.layout
        everyone = torch.arange(len(image), device=image.device)
        shared = len(bounds.lower) < len(image)
        if shared:
            boxes, row = torch.arange(len(bounds.lower), device=image.device), image
            held = bounds.lower, bounds.upper, bounds.open
        else:
            boxes, row = image, everyone
            held = bounds.lower[image], bounds.upper[image], bounds.open[image]
        lower, upper, open_ = held
        # One more column, for neurons that are not open: nobody reads it.
        ends = [F.pad(end.gather(1, open_), (0, 1)) for end in (lower, upper)]
        if shared:
            ends = [end[image] for end in ends]
        self.open = open_[image] if shared else open_
        splits = neuron.shape[1] > 0
        changed = neuron
        if splits:
            place = _places(open_, lower.shape[1])
            column = place[row[:, None], neuron]
            ends = list(clamped(ends[0], ends[1], column, sign, point))
        if splits and implied is not None:
            others = implied.neurons[image]
            at = place[row[:, None], others]
            ends = list(implied.narrowed(ends[0], ends[1], at, image, neuron, sign))
            changed, column = torch.cat([neuron, others], 1), torch.cat([column, at], 1)
        self.lower, self.upper = ends[0][:, :-1], ends[1][:, :-1]
        lines = self._box_lines(bounds, boxes, lower, upper)
        tables = [self._flat(lines, name, lower) for name in ("lower_slope", "upper_slope", "upper_intercept")]
        if shared:
            tables = [table[image] for table in tables]
        if splits:
            changed = torch.where(column < open_.shape[1], changed, self.layout.size)
            new = _kinks(self.layout, changed, ends[0].gather(1, column), ends[1].gather(1, column))
            for table, values in zip(tables, new, strict=True):
                table.scatter_(1, changed, values)
        self.slopes = tables[0]
        below, above, high = (self.layout.pieces(table) for table in tables)
        low = {i: _of_rows(line.lower_intercept, image if shared else None) for i, line in lines.items()}
        self.lines = {i: Lines(below[i], low[i], above[i], high[i]) for i in lines}

    def _box_lines(self, bounds: NeuronBounds, boxes: Tensor, lower: Tensor, upper: Tensor) -> dict[int, Lines]:
        """CROWN's lines of the activations that bend at zero alone in these boxes, (T,), without splits."""
        lows, highs = self.layout.pieces(lower), self.layout.pieces(upper)
        bent = [i for i in lows if i not in self.layout.curved]
        return {i: relax(bounds.activation(i, boxes), lows[i], highs[i]) for i in bent}

    def _flat(self, lines: dict[int, Lines], name: str, like: Tensor) -> Tensor:
        """One of the lines' tensors on the flat axis: (T, N + 1); a new tensor."""
        parts: list[Tensor] = []
        for i, place in self.layout.places.items():
            values = getattr(lines[i], name) if i in lines else None
            parts.append(like[:, place] if values is None else values.flatten(1))
        return torch.cat([*parts, torch.zeros_like(like[:, :1])], 1)


def _places(open_: Tensor, size: int) -> Tensor:
    """The place of each neuron among the open ones, U for others: (T, U) -> (T, size)."""
    most = open_.shape[1]
    out = torch.full((len(open_), size), most, device=open_.device)
    out.scatter_(1, open_, torch.arange(most, device=open_.device).expand_as(open_))
    out[:, -1] = most
    return out


def _kinks(layout: Layout, neuron: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lower slope, upper slope and upper intercept of neurons that are not grafted, by their bounds; all (B, C).

    Of neurons of curved activations, anything.
    """
    out: tuple[Tensor, ...] = (torch.zeros_like(lower),) * 3
    for i, here in layout.kinks.items():
        lines = relax(replace(layout.activation(i), graft=None), lower, upper)
        assert lines.upper_intercept is not None
        found = lines.lower_slope, lines.upper_slope, lines.upper_intercept
        one = len(layout.kinks) == 1
        out = found if one else tuple(torch.where(here[neuron], f, o) for f, o in zip(found, out, strict=True))
    return out[0], out[1], out[2]


def _of_rows(values: Tensor | None, image: Tensor | None) -> Tensor | None:
    """Values of boxes, (T, ...), for rows (B,) that lie in these boxes; image None: the boxes are the rows."""
    if values is None or image is None:
        return values
    return values[:1].expand(len(image), *values.shape[1:]) if values.stride(0) == 0 else values[image]
