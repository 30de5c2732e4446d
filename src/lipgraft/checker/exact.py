"""The bound of a leaf without any rounding.

Every number involved is a double, hence an integer times a power of two, and so are all sums and products of them:
arrays of Python's integers with one exponent per array are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from lipgraft.checker.bounds import Above, Forward, Lines, Splits
from lipgraft.checker.network import Array, Node, Weighted, need
from lipgraft.checker.planes import Choice, Reads


@dataclass(frozen=True)
class Dyadic:
    """whole * 2^power, whole an array of Python's integers."""

    whole: Array
    power: int

    @classmethod
    def of(cls, numbers: Array) -> Dyadic:
        mantissa, exponent = np.frexp(np.asarray(numbers, np.float64))
        whole = (mantissa * 2.0**53).astype(np.int64)
        zeros = np.where(whole == 0, 0, np.frexp((whole & -whole).astype(np.float64))[1] - 1)  # at the end, in binary
        power = np.where(whole == 0, np.iinfo(np.int32).max, exponent - 53 + zeros)
        least = int(power.min(initial=0))
        shift = np.where(whole == 0, 0, power - least)
        return cls((whole >> zeros).astype(object) << shift.astype(object), least)

    def __add__(self, other: Dyadic) -> Dyadic:
        power = min(self.power, other.power)
        return Dyadic((self.whole << (self.power - power)) + (other.whole << (other.power - power)), power)

    def times(self, other: Dyadic) -> Dyadic:
        return Dyadic(self.whole * other.whole, self.power + other.power)

    def dot(self, other: Dyadic) -> Dyadic:
        return Dyadic(np.array((self.whole * other.whole).sum(initial=0), object), self.power + other.power)

    def fraction(self) -> Fraction:
        return Fraction(int(self.whole)) * Fraction(2) ** self.power


def exact_bound(forward: Forward, row: Array, offset: float, slopes: Array, splits: Splits) -> Fraction:
    """The least value of row . output + offset over the box and the splits, by the lines of `forward`. slopes: (U,)."""
    pending = {forward.network.output: Dyadic.of(row)}
    constant = Dyadic.of(np.array(offset))
    while max(pending) > 0:
        v = max(pending)
        rows, node = pending.pop(v), forward.network.nodes[v]
        rho = forward.rho[v]
        if rho is not None:
            constant = constant + Dyadic(-abs(rows.whole), rows.power).dot(Dyadic.of(rho))
        if v in forward.lines:
            lines = forward.lines[v]
            if v in forward.planes:
                rows, more = _lifted(lines, forward.planes[v], rows, splits, pending)
                constant = constant + more
            parts, more = _through(lines, rows, slopes, splits)
        else:
            parts = _back(node, rows)
            more = Dyadic.of(np.zeros(())) if node.bias is None else rows.dot(Dyadic.of(node.bias))
        constant = constant + more
        for source, part in zip(node.inputs, parts, strict=True):
            pending[source] = pending[source] + part if source in pending else part
    least = pending[0]
    box = Dyadic.of(np.where(least.whole > 0, forward.values[0].low, forward.values[0].high))
    return (least.dot(box) + constant).fraction()


def _back(node: Node, rows: Dyadic) -> list[Dyadic]:
    power = rows.power
    if isinstance(node, Weighted):
        weight = Dyadic.of(node.weight)
        node, power = replace(node, weight=weight.whole), power + weight.power
    return [Dyadic(part[0], power) for part in node.back(rows.whole[None])]


def _lifted(
    lines: Lines, above: Above, rows: Dyadic, splits: Splits, pending: dict[int, Dyadic]
) -> tuple[Dyadic, Dyadic]:
    """As `Forward._lifted`."""
    columns = lines.index[above.place]
    used = (rows.whole[columns] < 0) & ~np.isin(above.place + lines.first, splits.neuron)
    negative, left = rows.whole[columns[used]], rows.whole.copy()
    left[columns[used]] = 0
    for source, slope in above.slope.items():
        more = Dyadic(np.zeros(slope.shape[1], object), 0)
        for coefficient, row in zip(negative, slope[used], strict=True):
            part, at = np.zeros(len(row), object), np.flatnonzero(row)
            found = Dyadic.of(row[at])
            part[at] = found.whole * coefficient
            more = more + Dyadic(part, rows.power + found.power)
        pending[source] = pending[source] + more if source in pending else more
    constant = Dyadic(negative, rows.power).dot(Dyadic.of(above.const[used]))
    return Dyadic(left, rows.power), constant


def show_planes(reads: Reads, choice: Choice, above: Above) -> None:
    """That planes lie above their neurons, by the bounds, weights and errors shown in double precision."""
    slopes = np.concatenate(list(above.slope.values()), axis=1)
    numbers = choice.low, choice.high, reads.bias, reads.error, reads.lower, reads.upper, above.const
    for j in range(len(reads.place)):
        p, q, bias, error, lower, upper, const = (Fraction(float(part[j])) for part in numbers)
        at = np.flatnonzero((reads.weight[j] != 0) | (slopes[j] != 0))
        row = reads.weight[j, at], slopes[j, at], reads.low[at], reads.high[at]
        below = p * (bias - lower + error) + _most(p, *row)
        over = (1 - q) * bias + q * (upper + error) + _most(1 - q, *row)
        need(const >= max(below, over) + error, "a plane above a neuron is not right in exact arithmetic.")


def _most(times: Fraction, weight: Array, slope: Array, low: Array, high: Array) -> Fraction:
    """The largest value of (times weight - slope) . x over the intervals. times: a sum of doubles."""
    factor = Dyadic(np.array(times.numerator, object), 1 - times.denominator.bit_length())
    rows = Dyadic.of(weight).times(factor) + Dyadic.of(-slope)
    return rows.dot(Dyadic.of(np.where(rows.whole > 0, high, low))).fraction()


def _through(lines: Lines, rows: Dyadic, slopes: Array, splits: Splits) -> tuple[list[Dyadic], Dyadic]:
    """As `bounds.through`, and the line above is shown to be right at both ends."""
    for bound, value in ((lines.lower, lines.left), (lines.upper, 1.0)):
        above = Dyadic.of(lines.chord).times(Dyadic.of(bound)) + Dyadic.of(lines.intercept)
        gap = above + Dyadic.of(bound).times(Dyadic.of(np.array(-value)))
        need(bool((gap.whole >= 0).all()), "a line above an activation is not right in exact arithmetic.")
    positive = rows.whole[lines.index] > 0
    slope, intercept = lines.stable.copy(), np.zeros(len(lines.index))
    chosen = np.where(positive, slopes[lines.first : lines.last], lines.chord)
    intercept[~positive] = lines.intercept[~positive]
    here = (splits.neuron >= lines.first) & (splits.neuron < lines.last)
    place = splits.neuron[here] - lines.first
    chosen[place], intercept[place] = np.where(splits.sign[here] > 0, 1.0, lines.left), 0.0
    slope[lines.index] = chosen
    multipliers = np.zeros(len(slope))
    multipliers[lines.index[place]] = -splits.sign[here] * splits.beta[here]
    out = rows.times(Dyadic.of(slope)) + Dyadic.of(multipliers)
    return [out], Dyadic(rows.whole[lines.index], rows.power).dot(Dyadic.of(intercept))
