"""alpha-CROWN: optimised lines for the margins that CROWN leaves open, then optimised bounds of hidden neurons."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import AlphaSettings, LowerBound, optimise
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.memory import Late, fitting, never
from lipgraft.bounds.numerics import proved
from lipgraft.bounds.refine import Sound, refine
from lipgraft.verification.branch_and_bound.images import Images, OpenImages
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.ledger import Outcome
from lipgraft.verification.stages.crown import OpenMargins


def passes(job: Job) -> tuple[bool, ...]:
    """How often `alpha_crown` is asked about an image that stays open, with which `last`.

    Optimised bounds of hidden neurons cost many times what the margins do, so they are for images that need them.
    """
    return (False, True) if _refines(job) else (True,)


def _refines(job: Job) -> bool:
    settings = job.settings.optimise
    return settings.refine != "none" and settings.refine_iterations > 0


@torch.no_grad()
def alpha_crown(job: Job, left: OpenMargins, *, last: bool = True) -> Outcome[OpenImages]:
    """Optimised lines for the margins that CROWN leaves open; what they leave open can be branched on.

    last: after optimised bounds of hidden neurons; what is proved of an image that stays open counts. Otherwise it is
    forgotten, and the image starts again from CROWN's margins. left: its margins are improved in place.
    """
    images, margins, late = left.images, left.margins, job.limit(left.images)
    with job.ledger.share(images):
        index = job.index(images)
        intervals = _refined(job, left, late) if last and _refines(job) else left.intervals
        shared = _shared(job, index, intervals, left)
        sub, broken = _margins(job, images, shared, left.target, margins, late)
    proved_margins = proved(margins)
    done = proved_margins.all(1)
    if job.ledger.drafts is not None:
        job.ledger.drafts.add(shared, sub.at(proved(sub.bound) & (done[sub.image] | last)))
    out = Outcome[OpenImages]()
    rest: list[int] = []
    for place, (image, is_done) in enumerate(zip(images, done.tolist(), strict=True)):
        if place in broken:
            point, margin = broken[place]
            out.decided.append(job.ledger.verdict(image, "falsified", counterexample=point, margin=margin))
        elif is_done:
            out.decided.append(job.ledger.verdict(image, "verified"))
        else:
            rest.append(place)
    if rest:
        floor = torch.where(proved_margins, margins, torch.inf).amin(1)
        out.rest.append(OpenImages(shared, sub.at(~proved(sub.bound)), floor).at(job.index(rest)))
    return out


def _refined(job: Job, left: OpenMargins, late: Late) -> list[Interval]:
    """The intervals of all nodes with optimised bounds of hidden neurons: all subproblems of an image gain by them."""
    settings, drafts = job.settings.optimise, job.ledger.drafts
    alpha = AlphaSettings(settings.refine_iterations, settings.lr, settings.decay)
    keep = None if drafts is None else partial(drafts.improved, left.images)
    sound = None
    if job.proof is not None and left.rounding is not None:
        sound = Sound(job.proof, left.rounding, left.errors, keep)
    most = job.settings.branch.batch
    return refine(job.network, left.intervals, settings.refine, alpha, most, late, sound)


def _shared(job: Job, index: Tensor, intervals: list[Interval], left: OpenMargins) -> Images:
    """What all subproblems of these images share."""
    layout = Layout.of(job.network, job.network.output)
    proof = None
    if job.proof is None:
        bounds = NeuronBounds.of(layout, intervals)
    else:
        proof = NeuronBounds.of(Layout.of(job.proof, job.proof.output), intervals, left.rounding, left.errors)
        bounds = proof.searched(layout, job.x.dtype)
    return Images(
        bounds,
        index,
        job.y[index],
        (job.box.lower[index], job.box.upper[index]),
        (job.inner.lower[index], job.inner.upper[index]),
        proof,
    )


Broken = dict[int, tuple[Tensor, float]]
"""Counterexample and margin of images, by their place in a list."""


def _margins(
    job: Job, images: list[int], shared: Images, target: Tensor, margins: Tensor, late: Late
) -> tuple[Subproblems, Broken]:
    """Optimise the lines of every margin that is not proved; margins (B, S) is improved in place.

    When the time is over, the margins that are left keep CROWN's bounds and lines.
    """
    settings = job.settings.optimise
    image, row = torch.nonzero(~proved(margins), as_tuple=True)
    steps = AlphaSettings(settings.iterations, settings.lr, settings.decay)
    on_cpu = job.x.device.type == "cpu"
    parts: list[Subproblems] = []
    broken: Broken = {}
    size = fitting(shared.layout.floats, job.x.device, job.x.dtype, job.settings.branch.batch)
    for some in torch.split(torch.arange(len(image), device=image.device), size):
        where, goal = image[some], target[image[some], row[some]]
        function = shared.whole(where, goal)
        alpha, beta, bound = function.start(), function.no_splits(), margins[where, row[some]]
        if not late():
            # On a GPU a look at the clock in every step would make it wait.
            found = optimise(function, alpha, beta, steps, early=on_cpu, late=late if on_cpu else never)
            alpha = found.alpha
            here = _without_splits(where, goal, found.bound, alpha, function)
            better = torch.nonzero(found.bound > bound).flatten()
            sure = torch.maximum(shared.proved_bounds(here.at(better), size), bound[better])
            bound = bound.index_copy(0, better, sure)
            margins[where, row[some]] = bound
            point = shared.corner(where, found.rows)
            broken |= _confirmed(job, images, where, point, shared.margin_at(where, point))
        parts.append(_without_splits(where, goal, bound, alpha, function))
    job.ledger.note(images, margins, "alpha-crown")
    return Subproblems.cat(parts), broken


def _without_splits(image: Tensor, target: Tensor, bound: Tensor, alpha: Tensor, function: LowerBound) -> Subproblems:
    none = function.no_splits()
    return Subproblems(image, target, bound, alpha, torch.zeros_like(image), function.neuron, none, none, none)


def _confirmed(job: Job, images: list[int], image: Tensor, point: Tensor, margin: Tensor) -> Broken:
    """The images that have a point of negative margin which the model misclassifies indeed."""
    out: Broken = {}
    for row in torch.nonzero(margin < 0).flatten().tolist():
        place = int(image[row])
        if place not in out:
            seen = job.replay(images[place], point[row])
            if seen is not None:
                out[place] = seen
    return out
