"""alpha-CROWN, with splits: choose the lines (alpha) and the multipliers (beta) so that a lower bound is high.

A subproblem is a row over the box of an image, with the image's pre-activation bounds, clamped where it has split a
neuron: z >= 0 lifts the lower bound to zero, z <= 0 drops the upper one. The split itself enters as a multiplier
beta >= 0 on z <= 0 or -z <= 0, added to the coefficient of z. Any alpha in [0, 1] and any beta >= 0 give a sound bound,
so a bound above zero is a proof however it was found; for a split that leaves no input at all it grows beyond every
limit.

`LowerBound` neither waits for the device nor depends on values in Python, so that it can be captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.ascent import AlphaSettings, optimise
from lipgraft.bounds.backward import Above, Relaxed, Rows, Substitution, ball
from lipgraft.bounds.corners import Hinged, attained, balanced
from lipgraft.bounds.crown import Prepared, specification_bounds
from lipgraft.bounds.grouped import Grouped
from lipgraft.bounds.implied import Implied
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.memory import Late, never
from lipgraft.bounds.narrowed import Narrowed
from lipgraft.bounds.own_lines import Shift
from lipgraft.bounds.planes import Plane
from lipgraft.bounds.reach import Known
from lipgraft.bounds.relaxations import Lines, family
from lipgraft.bounds.sound import SPARE, UNIT, guard_lower
from lipgraft.bounds.splits import splittable

NARROWED = 0.5  # a chord whose intercept splits have made so much smaller is better than a plane over the whole box
PLACES = 2  # steps to a better place for planes
HINGES = 16.0  # what planes around curves give away for rounding, times what lines do; see `bounds.corners`
CODES = 255  # alpha is kept in 8 bits: every alpha in [0, 1] is sound


def coded(alpha: Tensor) -> Tensor:
    """alpha in 8 bits."""
    return (alpha * CODES).round().to(torch.uint8)


def decoded(code: Tensor, dtype: torch.dtype) -> Tensor:
    """The alpha that a code stands for."""
    return code.to(dtype) / CODES


def alpha_crown(prepared: Prepared, C: Tensor, settings: AlphaSettings, late: Late = never) -> Tensor:
    """Lower bounds of C f(x), (B, G, S, n) -> (B, G, S), never worse than CROWN's. Each row has lines of its own.

    late: asked after every step; once it holds, no more are taken.
    """
    crown = specification_bounds(prepared, C)
    bounds = NeuronBounds.of(Layout.of(prepared.network, prepared.network.output), prepared.intervals)
    if bounds.open.shape[1] == 0:
        return crown
    function = LowerBound(bounds, torch.arange(len(C), device=C.device), C.flatten(1, 2).unsqueeze(1))
    found = optimise(function, function.start(), function.no_splits(), settings, late=late)
    return torch.maximum(found.bound.view_as(crown), crown)


class LowerBound:
    """The lower bounds of B subproblems as a function of their lines and multipliers.

    Each has R rows, with lines of their own: P = B R bounds in all. Splits need R = 1.
    """

    def __init__(
        self,
        bounds: NeuronBounds,
        image: Tensor,
        rows: Tensor,
        neuron: Tensor | None = None,
        sign: Tensor | None = None,
        point: Tensor | None = None,
        implied: Implied | None = None,
        planes: Mapping[int, Plane] | None = None,
        grouped: Grouped | None = None,
    ) -> None:
        """image: (B,), row of bounds; rows: (B, 1, R, *target shape), at the layout's target.

        neuron, sign, point: (B, D), the splits; none by default. A split is a neuron of the flat axis with sign +1 for
        z >= point or -1 for z <= point; sign 0 and neuron N fill up. No points: all are split at zero.
        implied: what splits say about other neurons, by the rows of bounds.
        planes: above some neurons, by the activation's position, of each group of subproblems; grouped: the subproblems
            by group. They need R = 1.
        """
        self.layout, self.rows, self.bounds, self.image = bounds.layout, rows, bounds, image
        self.root = (bounds.root[0][image], bounds.root[1][image])
        self.ball = ball(self.root)
        self.errors = {i: error[image] for i, error in bounds.errors.items()}
        self.neuron = image.new_zeros(len(image), 0) if neuron is None else neuron
        self.sign = rows.new_zeros(len(image), 0) if sign is None else sign
        # Kinks are split at zero and once: points matter where there are curves.
        self.point = point if self.layout.curved else None
        narrowed = Narrowed(bounds, image, self.neuron, self.sign, self.point, implied)
        self.ends = narrowed.lower, narrowed.upper
        self.lines = narrowed.lines
        self.base, self.open = self._by_row(narrowed.slopes), self._by_row(narrowed.open)
        self.lower, self.upper = (self._by_row(end) for end in self.ends)
        self.bent = (self.lower < 0) & (self.upper > 0)
        # Which of the open neurons can be split: (P, U).
        curved = bool(self.layout.curved)
        self.free = splittable(self.layout, self.open, self.lower, self.upper) if curved else self.bent
        self.stable_slope = self.base.gather(1, self.open)
        self.negative_slope, self.bias = self.layout.negative_slope[self.open], self.layout.bias[self.open]
        self.splits = self._splits()
        self.hinged: dict[int, Hinged] = {}
        self.held: dict[int, Lines] | None = None
        self.families = {i: self._family(i) for i in self.layout.curved}
        self.planes = {} if planes is None or grouped is None else self._above(planes, grouped)

    def exact_at(
        self, place: Tensor, level: Tensor | None = None, known: Mapping[int, Known] | None = None
    ) -> LowerBound:
        """The same with planes around curves in place of their lines; see `bounds.corners`. R = 1.

        place: (B, *root shape), in [0, 1], where in their boxes the planes are exact; level, known: see `Hinged.all`.
        """
        out = copy(self)
        out.hinged = Hinged.all(self.bounds, self.image, self.pre, place.clamp(0, 1), level, known)
        return out

    def sharing(self, share: Mapping[int, Tensor]) -> LowerBound:
        """The same with these shares, by activation, of the planes that it has; see `Hinged`."""
        out = copy(self)
        out.hinged = {i: replace(hinged, share=share[i].clamp(0, 1)) for i, hinged in self.hinged.items()}
        return out

    def holding(self, alpha: Tensor) -> LowerBound:
        """The same with these lines, (P, U k), whatever `value` is told: to optimise multipliers alone."""
        out = copy(self)
        out.held = self.lines_at(alpha)
        return out

    def best_place(self, alpha: Tensor, beta: Tensor, level: Tensor | None = None, *, steps: int = PLACES) -> Tensor:
        """Where such planes had best be exact, with these lines of the other layers: (B, *root shape)."""
        place = attained(self.value(alpha, beta)[1])
        for _ in range(steps):
            record: dict[int, Tensor] = {}
            _, rows = self.exact_at(place, level).value(alpha, beta, record)
            place = balanced(rows, record[self.layout.path.root], place)
        return place

    @cached_property
    def pre(self) -> dict[int, Interval]:
        """The bounds of the neurons of each activation after splits, each end (B, 1, 1, *shape)."""
        open_ = self.bounds.open[self.image]
        held = (end[self.image] for end in (self.bounds.lower, self.bounds.upper))
        lows, highs = (self.layout.pieces(end.scatter(1, open_, now)) for end, now in zip(held, self.ends, strict=True))
        return {i: (low, highs[i]) for i, low in lows.items()}

    def _splits(self) -> dict[int, tuple[Tensor, Tensor]]:
        """By activation, the places of split neurons among its own and what a multiplier adds there: (B, D) each.

        A split of another activation's neuron adds nothing, at the first place.
        """
        if not self.neuron.shape[1]:
            return {}
        out: dict[int, tuple[Tensor, Tensor]] = {}
        for i, place in self.layout.places.items():
            here = (self.neuron >= place.start) & (self.neuron < place.stop)
            out[i] = torch.where(here, self.neuron - place.start, 0), torch.where(here, -self.sign, 0.0)
        return out

    def start(self) -> Tensor:
        """The alpha that plain CROWN takes: (P, U k). Neurons with fewer than k parameters repeat their last one."""
        if not self.open.shape[1]:
            return self.no_splits()
        layout = self.layout
        starts = {i: layout.activation(i).curve.start(*ends) for i, ends in self.pre.items()}
        flat = [layout.flat({i: s[min(j, len(s) - 1)] for i, s in starts.items()}) for j in range(layout.parameters)]
        parts = [self._by_row(F.pad(part, (0, 1))).gather(1, self.open) for part in flat]
        return torch.stack(parts, 2).flatten(1)

    def no_splits(self) -> Tensor:
        """The beta of subproblems without splits: (P, 0)."""
        return self.base.new_zeros(len(self.base), 0)

    def value(self, alpha: Tensor, beta: Tensor, record: dict[int, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The bounds, (P,), and the rows at the root, (P, *root shape). Differentiable.

        alpha: (P, U k), in [0, 1]: k free parameters of each open neuron, where k is `layout.parameters`.
        beta: (P, D), >= 0, a multiplier of each split.
        record: filled with the coefficients of each activation's output, (B, 1, R, *shape).
        """
        layout = self.layout
        shifts = {i: Shift(column, sign * beta) for i, (column, sign) in self.splits.items()}
        relaxed = Relaxed(self.lines_at(alpha), self.root, shifts, self.errors, self.ball, self.planes, self.hinged)
        walk = Substitution(layout.network, layout.path, relaxed, None, record)
        const = self.rows.new_zeros(self.rows.shape[:3])
        if self.point is not None:  # -sign * beta * (z - point)
            const = const + (self.sign * beta * self.point).sum(1).view(const.shape)
        rows, const = walk.to_root(Rows(self.rows), const, layout.path.target)
        return (const + walk.minimum(rows)).flatten(), rows.data.flatten(0, 2)

    def coefficients(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """Of the open neurons' outputs in the bounds: (P, U)."""
        record: dict[int, Tensor] = {}
        self.value(alpha, beta, record)
        return self.layout.flat(record).gather(1, self.open.clamp(max=self.layout.size - 1))

    def linear(self, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes (P, m) and constants (P,) of linear functions of the root below the rows' values, without splits."""
        value, rows = self.value(alpha, beta)
        rows = rows.flatten(1)
        low, high = (end.flatten(1) for end in self.root)
        const = value - torch.minimum(rows * low, rows * high).sum(1)
        if self.bounds.target_slack is not None:  # for the rows, the bound, its least value, and who evaluates it
            const = const - 4 * self._hinges() * (
                self.rows[:, 0, 0].abs() * self.bounds.target_slack[self.image]
            ).flatten(1).sum(1)
        return rows, const

    def sound_value(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """The bounds less what rounding may have added, (P,): proofs in real numbers. For sound bounds, and R = 1.

        Whatever a search hands over: what is not in [0, 1], or below zero, is moved there; NaN proves nothing.
        """
        alpha, beta = alpha.clamp(0, 1), beta.clamp(min=0)
        bounds, image = self.bounds, self.image
        assert bounds.slack is not None
        assert bounds.target_slack is not None
        value, _ = self.value(alpha, beta)
        slack = (self.rows[:, 0, 0].abs() * bounds.target_slack[image]).flatten(1).sum(1)
        slack = slack + (beta * bounds.slack[image].gather(1, self.neuron)).sum(1)
        if self.point is not None:  # a sum of D products, added to the rest
            share = SPARE * (self.point.shape[1] + 4) * UNIT
            slack = slack + share * (beta * self.point.abs()).sum(1)
        return guard_lower(value - self._hinges() * slack)

    def _hinges(self) -> float:
        return HINGES if self.hinged else 1.0

    def lines_at(self, alpha: Tensor) -> dict[int, Lines]:
        """The lines of every activation. Where it bends at zero alone, only its lower slope is free."""
        if self.held is not None:
            return self.held
        layout, count = self.layout, self.rows.shape[2]
        parts = alpha.view(*self.open.shape, layout.parameters).unbind(2)
        slope = self.negative_slope + parts[0] * (1 - self.negative_slope)
        if slope.dtype == torch.float64:  # proofs: the sum may round to more than the one that is allowed
            slope = slope.clamp(max=1.0)
        slopes = self.base.scatter(1, self.open, torch.where(self.bent, slope, self.stable_slope))
        lower_slope = layout.pieces(slopes, count)
        lines = {i: replace(line, lower_slope=lower_slope[i]) for i, line in self.lines.items()}
        if self.families:  # neurons that are not open are lines, whatever alpha is
            any_alpha = torch.zeros_like(self.base)
            chosen = [layout.pieces(any_alpha.scatter(1, self.open, part), count) for part in parts]
            for i, family_of_lines in self.families.items():
                lines[i] = family_of_lines(torch.stack([pieces[i] for pieces in chosen]))
        for i, hinged in self.hinged.items():
            lines[i] = hinged.over(lines[i])
        return lines

    def _above(self, planes: Mapping[int, Plane], grouped: Grouped) -> dict[int, Above]:
        """The planes, and where they stand in for chords: not where a neuron's interval is half gone."""
        out: dict[int, Above] = {}
        for i, plane in planes.items():
            column = plane.column[grouped.group]
            low, high = (end.flatten(1).gather(1, column) for end in self.pre[i])
            neuron = column + self.layout.places[i].start
            whole = (end[self.image[:, None], neuron] for end in (self.bounds.lower, self.bounds.upper))
            left = (low < 0) & (high > 0) & (_intercept(low, high) >= NARROWED * _intercept(*whole))
            used = left & plane.real[grouped.group] & grouped.member[:, None]
            out[i] = Above(column, used.to(low.dtype), plane.slope, plane.const[grouped.group], grouped)
        return out

    def _family(self, i: int) -> Callable[[Tensor], Lines]:
        return family(self.bounds.activation(i, self.image), *self.pre[i], anchors=self._anchors(i))

    def _anchors(self, i: int) -> Tensor | None:
        """Those of the image's intervals, with those of split neurons in place: (m, B, 1, 1, *shape)."""
        anchors = self.bounds.anchors.get(i)
        if anchors is None:
            return None
        anchors = anchors[:, self.image].flatten(2)
        if self.neuron.shape[1]:
            place, curve = self.layout.places[i], self.layout.activation(i).curve
            column = (self.neuron - place.start).clamp(0, anchors.shape[2] - 1)  # of another activation: any, as it is
            ends = (end.flatten(1).gather(1, column) for end in self.pre[i])
            found = curve.anchors(*ends, quick=True)
            assert found is not None
            anchors = anchors.scatter(2, column.expand_as(found), found)
        return anchors.view(len(anchors), *self.pre[i][0].shape)

    def _by_row(self, values: Tensor) -> Tensor:
        """(B, n) -> (P, n): each subproblem's values for each of its rows."""
        count = self.rows.shape[2]
        return values if count == 1 else values.repeat_interleave(count, 0)


def _intercept(lower: Tensor, upper: Tensor) -> Tensor:
    """Of a ReLU's chord."""
    return -lower * upper / (upper - lower).clamp(min=torch.finfo(lower.dtype).tiny)
