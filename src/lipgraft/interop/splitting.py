"""Branch and bound on inputs: for networks with few of them, halving boxes is a complete method.

Every box is bounded by CROWN, and so are mixtures of rows that must hold together. A box that is not proved is cut in
half across the input that could give its rows most of what they lack, and both halves go back on the pile. Before that
it is clipped: the bounds are lines, and where a line is above a row's limit, so is the row. The boxes of all regions of
a property lie on one pile and are bounded together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from lipgraft.bounds.crown import prepare, specification_bounds
from lipgraft.bounds.geometry import at_input, input_like
from lipgraft.bounds.memory import Late, is_out_of_memory, release
from lipgraft.box import Box
from lipgraft.interop.replay import Counterexample, replay
from lipgraft.interop.result import Word
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Region
from lipgraft.network import Network, evaluate, full_precision, like

MOST_INPUTS = 20  # that are not fixed
BATCH = {"cpu": 512, "cuda": 16384}  # boxes bounded together
NUMBERS = {"cpu": 1 << 25, "cuda": 1 << 29}  # of the largest array that this needs
TOGETHER = 4096  # regions whose boxes share a pile
TRIED = 3  # points of a batch that onnxruntime is asked about
MIXTURES = 12  # steps in which rows of a disjunct are mixed
TINY = 1e-9
SPARE = 1e-6  # of a box's sides: clipping leaves so much more than it must, far more than rounding moves a line
NARROW = 2e-5  # of the whole box: below this, rounding decides, and cutting on proves nothing


@dataclass(frozen=True, eq=False)
class Split:
    """status: "unsat", "sat", "timeout" or "unknown"; boxes: how many were bounded."""

    status: Word
    counterexample: Counterexample | None
    boxes: int


@torch.no_grad()
def split_inputs(
    network: Network, regions: Iterator[Region], judge: OnnxRuntime, deadline: float, *, sound: bool = False
) -> Split:
    """Decide all regions together, until `deadline` (time.monotonic).

    network: the graph, in double precision. sound: bounds hold in real numbers (see `bounds.sound`).
    """
    done, unknown = 0, False
    with full_precision():
        while some := list(islice(regions, TOGETHER)):
            result = _decide(network, some, judge, deadline, sound)
            done += result.boxes
            if result.status in ("sat", "timeout"):
                return Split(result.status, result.counterexample, done)
            unknown = unknown or result.status == "unknown"
    return Split("unknown" if unknown else "unsat", None, done)


def _decide(network: Network, regions: list[Region], judge: OnnxRuntime, deadline: float, sound: bool) -> Split:
    questions = _Questions.of(regions, network)
    device = questions.limit.device.type
    widest = max(math.prod(node.shape) for node in network.nodes)
    most = NUMBERS.get(device, NUMBERS["cpu"]) // widest // max(widest, questions.limit.shape[1])
    room = max(1, min(BATCH.get(device, BATCH["cpu"]), most))

    def late() -> bool:
        return time.monotonic() > deadline

    pile, done, unknown = [questions.boxes()], 0, False
    while pile:
        if late():
            return Split("timeout", None, done)
        boxes = _take(pile, room)
        if not len(boxes.asked):  # all that was left of the last ones is too narrow
            continue
        try:
            excess, weight, slopes, clipped = _bounded(network, boxes, questions, sound, late)
        except RuntimeError as error:
            if not is_out_of_memory(error) or room == 1:
                raise
            failed = True
        else:
            failed, done = False, done + len(boxes.asked)
        if failed:  # outside of the handler, which keeps the arrays alive
            release()
            pile.append(boxes)
            room = max(1, min(room, len(boxes.asked)) // 2)
            continue
        corner = torch.where(weight > 0, boxes.lower, boxes.upper)
        found = _violation(network, boxes, corner, questions, regions, judge)
        if found is not None:
            return Split("sat", found, done)
        left = ~(excess > 0)  # NaN proves nothing
        if not bool(left.any()):
            continue
        share = (boxes.upper - boxes.lower) / questions.width[boxes.asked]
        narrow = left & (share.nan_to_num(nan=0.0).amax(1) < NARROW)
        if bool(narrow.any()):
            unknown = True
            left = left & ~narrow
        shrunk = left & ((clipped.upper - clipped.lower) < (boxes.upper - boxes.lower) / 2).any(1)
        if bool(shrunk.any()):  # as good as cut already: bound what is left first, it may be clipped again
            pile.append(clipped.at(shrunk))
            left = left & ~shrunk
        if not bool(left.any()):  # kernels of a GPU refuse a batch of nothing
            continue
        open_, slopes = clipped.at(left), slopes[left]
        width = open_.upper - open_.lower
        share = width / questions.width[open_.asked]
        # A side that was cut less often is worth more: what a bound does not depend on here it may depend on later.
        score = torch.where(share >= NARROW, (slopes.abs() * width + TINY) * share, -1.0)
        pile.append(_halved(open_, score.argmax(1)))
    return Split("unknown" if unknown else "unsat", None, done)


@dataclass(frozen=True, eq=False)
class _Boxes:
    """lower, upper: (N, inputs); asked: (N,), which region each belongs to."""

    lower: Tensor
    upper: Tensor
    asked: Tensor

    def at(self, which: Tensor | slice) -> _Boxes:
        return _Boxes(self.lower[which], self.upper[which], self.asked[which])


@dataclass(frozen=True, eq=False)
class _Questions:
    """What is asked of each region's boxes. All on the network's device, in double precision.

    A: (R, K, outputs), limit: (R, K): the rows A y <= b of all disjuncts of a region, one after the other;
    disjunct: (R, K), which one a row belongs to; count: the most disjuncts of a region; width: (R, inputs).
    A region with fewer rows has rows 0 y <= -1 of disjuncts of their own, which never hold.
    """

    lower: Tensor
    upper: Tensor
    A: Tensor
    limit: Tensor
    disjunct: Tensor
    count: int

    @staticmethod
    def of(regions: Sequence[Region], network: Network) -> _Questions:
        device = like(network).device
        rows = max(sum(len(part.b) for part in region.disjuncts) for region in regions)
        count = max(len(region.disjuncts) for region in regions) + 1
        outputs = regions[0].disjuncts[0].A.shape[1]
        A, limit = torch.zeros(len(regions), rows, outputs).double(), torch.full((len(regions), rows), -1.0).double()
        disjunct = torch.full((len(regions), rows), count - 1)
        for i, region in enumerate(regions):
            b = torch.cat([part.b for part in region.disjuncts])
            A[i, : len(b)], limit[i, : len(b)] = torch.cat([part.A for part in region.disjuncts]), b
            sizes = torch.tensor([len(part.b) for part in region.disjuncts])
            disjunct[i, : len(b)] = torch.arange(len(sizes)).repeat_interleave(sizes)
        ends = (torch.stack([getattr(region, end) for region in regions]) for end in ("lower", "upper"))
        lower, upper, A, limit, disjunct = (t.to(device) for t in (*ends, A, limit, disjunct))
        return _Questions(lower, upper, A, limit, disjunct, count)

    @property
    def width(self) -> Tensor:
        return self.upper - self.lower

    def boxes(self) -> _Boxes:
        """Every region whole."""
        return _Boxes(self.lower, self.upper, torch.arange(len(self.lower), device=self.lower.device))

    @cached_property
    def joins(self) -> bool:
        """Whether any disjunct has several rows."""
        return bool((self.disjunct[:, 1:] == self.disjunct[:, :-1]).any())

    def best(self, rows: Tensor, groups: Tensor) -> Tensor:
        """The largest of each disjunct's rows: (N, K) -> (N, D). A NaN counts as -inf."""
        rows = torch.where(rows.isnan(), -torch.inf, rows)
        return rows.new_full((len(rows), self.count), -torch.inf).scatter_reduce(1, groups, rows, "amax")

    def present(self, groups: Tensor) -> Tensor:
        """Which disjuncts there are: (N, D)."""
        return torch.zeros(len(groups), self.count, dtype=torch.bool, device=groups.device).scatter(1, groups, True)

    def worst(self, rows: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """For values of rows less their limits, (N, K): the least over disjuncts of each one's largest, and its row.

        Above 0 exactly where no disjunct can hold.
        """
        groups = self.disjunct[asked]
        worst, which = torch.where(self.present(groups), self.best(rows, groups), torch.inf).min(1)
        rows = torch.where(rows.isnan(), -torch.inf, rows)
        return worst, torch.where(groups == which[:, None], rows, -torch.inf).argmax(1)


def _take(pile: list[_Boxes], room: int) -> _Boxes:
    """At most `room` boxes from the top of the pile, so that the pile stays as low as the tree is deep."""
    taken = []
    while pile and room:
        top = pile.pop()
        if len(top.asked) > room:
            pile.append(top.at(slice(None, -room)))
            top = top.at(slice(-room, None))
        taken.append(top)
        room -= len(top.asked)
    joined = (torch.cat([getattr(part, name) for part in taken]) for name in ("lower", "upper", "asked"))
    return _Boxes(*joined)


def _bounded(
    network: Network, boxes: _Boxes, questions: _Questions, sound: bool, late: Late
) -> tuple[Tensor, Tensor, Tensor, _Boxes]:
    """For each box how far it is from a violation at least (N,), the coefficients of that bound (N, inputs), how much
    of what its rows lack each input could give them, per length, and the part of the box that may have violations.
    """
    shape, root = network.input_shape, input_like(network)
    box = Box(boxes.lower.view(-1, *shape), boxes.upper.view(-1, *shape))
    prepared = prepare(network, box, sound_for=torch.float64 if sound else None, late=late)
    record: dict[int, Tensor] = {}
    A, limits, groups = questions.A[boxes.asked], questions.limit[boxes.asked], questions.disjunct[boxes.asked]
    # A difference rounds to 0 only where both are equal, and never to the other side.
    excess = specification_bounds(prepared, A.unsqueeze(1), record=record)[:, 0] - limits
    worst, row = questions.worst(excess, boxes.asked)
    single_rows = record[0][:, 0]
    lines = at_input(network, root, single_rows).flatten(2)
    weight = _row(lines, row)
    if bool((worst > 0).all()):
        return worst, weight, weight, boxes
    if not questions.joins:
        worst, clipped = _clipped(boxes, worst, excess, lines, groups, questions)
        return worst, weight, weight, clipped
    ends = [end.flatten(1) for end in prepared.intervals[root]]
    share = _mixed(excess, single_rows.flatten(2), ends[0], ends[1], groups, questions.count)
    mixture = share.new_zeros(*share.shape, questions.count).scatter(2, groups.unsqueeze(2), share.unsqueeze(2))
    largest = torch.maximum(*(end.abs() for end in prepared.intervals[network.output]))
    joint, allowed = _joined(mixture, A, limits, largest)
    joint_excess = specification_bounds(prepared, joint.unsqueeze(1), record=record)[:, 0] - allowed
    joint_excess = torch.where(joint_excess.isnan(), -torch.inf, joint_excess)
    single = questions.best(excess, groups)
    better = torch.maximum(single, joint_excess)
    worst, which = torch.where(questions.present(groups), better, torch.inf).min(1)
    joint_lines = at_input(network, root, record[0][:, 0]).flatten(2)
    weight = _row(joint_lines, which)
    lacking = torch.where(groups == which[:, None], -excess, torch.inf).clamp(min=TINY)
    slopes = (lines.abs() / lacking.unsqueeze(2)).sum(1) + weight.abs() / worst.abs().clamp(min=TINY)[:, None]
    every = torch.arange(questions.count, device=groups.device).expand(len(groups), -1)
    values, rows = torch.cat([excess, joint_excess], 1), torch.cat([lines, joint_lines], 1)
    worst, clipped = _clipped(boxes, worst, values, rows, torch.cat([groups, every], 1), questions)
    return worst, weight, slopes, clipped


def _clipped(
    boxes: _Boxes, worst: Tensor, excess: Tensor, lines: Tensor, groups: Tensor, questions: _Questions
) -> tuple[Tensor, _Boxes]:
    """The boxes around where a disjunct may still hold; where none may, `worst` becomes infinite.

    excess: (N, R), the least value of each line on the box, less the limit; lines: (N, R, inputs), its coefficients a;
    groups: (N, R), the disjunct that a line belongs to. A line has its least value where every input is at the end that
    a_i's sign says, and rises by |a_i| for each step away from there: the row cannot hold where any input is further
    than -excess / |a_i| from its end. All rows of a disjunct hold together, so what they leave is cut; disjuncts are
    alternatives, so what they leave is joined.
    """
    lower, upper = boxes.lower.unsqueeze(1), boxes.upper.unsqueeze(1)
    size = torch.maximum(lower.abs(), upper.abs())
    reach = (-excess.unsqueeze(2) / lines.abs()).nan_to_num(nan=torch.inf, posinf=torch.inf).clamp(min=0.0)
    reach = reach * (1.0 + SPARE) + SPARE * (upper - lower) + 2.0**-50 * size
    places = groups.unsqueeze(2).expand_as(lines)
    highs = torch.where(lines > 0, torch.minimum(lower + reach, upper), upper)
    lows = torch.where(lines < 0, torch.maximum(upper - reach, lower), lower)
    shape = len(lower), questions.count, lower.shape[2]
    high = upper.expand(shape).scatter_reduce(1, places, highs, "amin")
    low = lower.expand(shape).scatter_reduce(1, places, lows, "amax")
    kept = questions.present(groups[:, : questions.disjunct.shape[1]]) & ~(questions.best(excess, groups) > 0)
    kept = kept & (low <= high).all(2)
    some = kept.any(1)
    low = torch.where(kept.unsqueeze(2), low, torch.inf).amin(1)
    high = torch.where(kept.unsqueeze(2), high, -torch.inf).amax(1)
    lower, upper = (torch.where(some[:, None], new, old) for new, old in ((low, boxes.lower), (high, boxes.upper)))
    return torch.where(some, worst, torch.inf), _Boxes(lower, upper, boxes.asked)


def _row(lines: Tensor, row: Tensor) -> Tensor:
    """One row of each box: (N, K, inputs), (N,) -> (N, inputs)."""
    return lines[torch.arange(len(row), device=row.device), row]


def _mixed(bounds: Tensor, rows: Tensor, low: Tensor, high: Tensor, groups: Tensor, count: int) -> Tensor:
    """Shares of the rows of each disjunct whose mixture has a large bound: (N, K), those of a disjunct sum to 1.

    All rows of a disjunct hold together, so any mixture of them must hold too. The rows' lower bounds are lines
    l(x) = a x + c on the box (bounds: their least values, rows: a, (N, K, n)); the least value of a mixture is concave
    in the shares, and its gradient is l at the mixture's corner.
    """
    base = bounds - torch.minimum(rows * low[:, None], rows * high[:, None]).sum(2)
    base = torch.where(base.isfinite(), base, 0.0)
    rows = torch.where(rows.isfinite(), rows, 0.0)
    weight, chosen = torch.zeros_like(base), torch.zeros_like(base)
    record = base.new_full((len(base), count), -torch.inf)
    places = groups.unsqueeze(2).expand_as(rows)
    for step in range(1, MIXTURES + 1):
        top = base.new_full((len(base), count), -torch.inf).scatter_reduce(1, groups, weight, "amax")
        share = (weight - top.gather(1, groups)).exp()
        share = share / share.new_zeros(len(base), count).scatter_add(1, groups, share).gather(1, groups)
        mixed = rows.new_zeros(len(rows), count, rows.shape[2]).scatter_add(1, places, rows * share.unsqueeze(2))
        corner = torch.where(mixed > 0, low[:, None], high[:, None]).gather(1, places)
        lines = (rows * corner).sum(2) + base
        value = rows.new_zeros(len(rows), count).scatter_add(1, groups, share * lines)
        chosen = torch.where((value > record).gather(1, groups), share, chosen)
        record = torch.maximum(record, value)
        size = lines.new_zeros(len(rows), count).scatter_reduce(1, groups, lines.abs(), "amax").gather(1, groups)
        weight = weight + 4.0 / math.sqrt(step) * lines / size.clamp(min=1e-30)
    return chosen


def _joined(mixture: Tensor, A: Tensor, limits: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """The mixtures of rows, (N, D, outputs), and the limits that they keep in real numbers, (N, D).

    mixture: (N, K, D), >= 0; largest: the outputs' absolute values at most, (N, outputs). Rounding the mixture moves it
    by at most gamma times the absolute values that it adds up.
    """
    joint = torch.einsum("nkd,nko->ndo", mixture, A)
    size = torch.einsum("nkd,nk->nd", mixture, limits.abs() + (A.abs() * largest[:, None]).sum(2))
    gamma = 4.0 * (mixture.shape[1] + A.shape[2] + 2) * 2.0**-53
    return joint, torch.einsum("nkd,nk->nd", mixture, limits) + gamma * size


def _violation(
    network: Network,
    boxes: _Boxes,
    corner: Tensor,
    questions: _Questions,
    regions: Sequence[Region],
    judge: OnnxRuntime,
) -> Counterexample | None:
    """Looks at the corner where each bound is attained, and at the middle of each box."""
    points = torch.cat([corner, (boxes.lower + boxes.upper) / 2])
    asked = boxes.asked.repeat(2)
    y = evaluate(network, points.view(-1, *network.input_shape))[network.output]
    rows = torch.einsum("nko,no->nk", questions.A[asked], y) - questions.limit[asked]
    excess, _ = questions.worst(rows, asked)
    for i in (excess <= 0).nonzero().flatten()[:TRIED].tolist():
        found = replay(judge, regions[int(asked[i])], points[i : i + 1])
        if found is not None:
            return found
    return None


def _halved(boxes: _Boxes, axis: Tensor) -> _Boxes:
    """Both halves of every box. axis: (N,)."""
    at = axis[:, None]
    middle = (boxes.lower.gather(1, at) + boxes.upper.gather(1, at)) / 2
    lows = torch.cat([boxes.lower, boxes.lower.scatter(1, at, middle)])
    highs = torch.cat([boxes.upper.scatter(1, at, middle), boxes.upper])
    return _Boxes(lows, highs, boxes.asked.repeat(2))
