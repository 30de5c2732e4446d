"""Margins that optimised lines leave open, one by one, with planes in all layers of curves; see `bounds.meeting`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import LowerBound, coded, decoded
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.meeting import fitted, joined, meeting
from lipgraft.bounds.memory import Late
from lipgraft.bounds.reach import Known
from lipgraft.bounds.sound import proved
from lipgraft.rounding import round_down
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.open_margins import OpenMargins

TOGETHER = 8  # margins at once on a GPU, at most; each takes 100 MB for CNN-B
SHARE = 0.25  # of the time that is left to their images


def at_one_place(
    job: Job, left: OpenMargins, intervals: list[Interval], shared: Images, sub: Subproblems, late: Late
) -> Subproblems:
    """The margins that are open still, with planes in all layers that are exact at one place; see `bounds.meeting`.

    The worst margin of an image comes first: if it stays open, so does the image, and the others can wait.
    left: its margins are improved in place.
    """
    bound = sub.bound.clone()
    waiting = [
        rows[bound[rows].argsort()].tolist()
        for place in range(len(left.images))
        if len(rows := torch.nonzero((sub.image == place) & ~proved(bound)).flatten())
    ]
    waiting.sort(key=lambda rows: -float(bound[rows[0]]))  # images that need least come first
    together = 1 if job.x.device.type == "cpu" else TOGETHER  # a CPU gains nothing, and looks at the clock in between
    end = job.ledger.now() + SHARE * job.left(left.images)
    while waiting and not late() and job.ledger.now() < end:
        now, later = waiting[:together], waiting[together:]
        first = torch.tensor([rows[0] for rows in now], device=bound.device)
        found = _bounds(job, left, intervals, shared, sub.at(first), late)
        bound = bound.index_copy(0, first, torch.maximum(bound[first], found))
        good = proved(bound[first]).tolist()
        waiting = [rows[1:] for rows, is_good in zip(now, good, strict=True) if is_good and len(rows) > 1] + later
    for row, (image, target) in enumerate(zip(sub.image.tolist(), sub.target.tolist(), strict=True)):
        left.margins[image, left.target[image] == target] = bound[row]
    job.ledger.note(left.images, left.margins, "alpha-crown")
    return replace(sub, bound=bound)


def _bounds(
    job: Job, left: OpenMargins, intervals: list[Interval], shared: Images, some: Subproblems, late: Late
) -> Tensor:
    """The bounds of margins, of an image each, with such planes: (B,). late: ends the search for the best ones."""
    image, target = some.image, some.target
    assert shared.places is not None
    network = job.network if job.proof is None else job.proof
    held = shared.bounds if shared.proof is None else shared.proof
    dtype = held.lower.dtype
    place = decoded(shared.places[image, target], dtype)
    parts: list[dict[int, Known]] = []
    for row, one in enumerate(torch.split(image, 1)):
        box = [(lower[one], upper[one]) for lower, upper in intervals]
        rounding = None if left.rounding is None else left.rounding.at(one)
        parts.append(meeting(network, box, place[row : row + 1], rounding))
    met, bounds = joined(parts), held.at(image)
    everyone = torch.arange(len(image), device=image.device)
    function = LowerBound(bounds, everyone, shared.margins(image, target).to(dtype))
    alpha, none, best = decoded(coded(some.alpha), dtype), function.no_splits(), some.bound
    # Functions that do not meet change less over the box: for wide intervals these are better.
    for known in (met, met | dict(bounds.reach)):
        found = fitted(function, place, alpha, known, late)
        value = found.bound
        if shared.proof is not None:
            value = found.planes(function, known).sound_value(found.alpha, none)
        best = torch.maximum(best, round_down(value, best.dtype))
        if bool(proved(best).all()) or late():
            break
    return best
