"""alpha-CROWN: optimised lines for the margins that CROWN leaves open, after optimised bounds of hidden neurons."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import AlphaSettings, LowerBound, optimise
from lipgraft.bounds.api import METHODS, bound_specification
from lipgraft.bounds.layout import Layout, NeuronBounds, piecewise_linear
from lipgraft.bounds.memory import Late, fitting, never
from lipgraft.bounds.numerics import guard_lower, proved
from lipgraft.bounds.refine import refine
from lipgraft.verification.branch_and_bound.images import Images, OpenImages
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.ledger import Decided, Outcome
from lipgraft.verification.stages.crown import Crowned


@torch.no_grad()
def alpha_crown(job: Job, crowned: Crowned) -> Outcome[OpenImages]:
    """Optimised lines for the margins that CROWN leaves open."""
    if not piecewise_linear(job.network):
        return Outcome(_without_branching(job, crowned))
    images, settings = crowned.images, job.settings
    late = job.limit(images)
    with job.ledger.share(images):
        index = job.index(images)
        box = (job.box.lower[index], job.box.upper[index])
        inner = (job.inner.lower[index], job.inner.upper[index])
        alpha = AlphaSettings(settings.refine_iterations, settings.lr_root, settings.decay)
        intervals = refine(job.network, crowned.prepared.intervals, settings.refine, alpha, settings.batch, late)
        bounds = NeuronBounds.of(Layout.of(job.network, job.network.output), intervals)
        shared = Images(bounds, index, job.y[index], box, inner)
        margins = crowned.margins
        sub, broken = _margins(job, images, shared, crowned.target, margins, late)
    return _sorted(job, images, shared, sub, margins, broken)


Broken = dict[int, tuple[Tensor, float]]
"""Counterexample and margin of images, by their place in a list."""


def _margins(
    job: Job, images: list[int], shared: Images, target: Tensor, margins: Tensor, late: Late
) -> tuple[Subproblems, Broken]:
    """Optimise the lines of every margin that is not proved; margins (B, S) is improved in place.

    When the time is over, the margins that are left keep CROWN's bounds and lines.
    """
    settings = job.settings
    image, row = torch.nonzero(~proved(margins), as_tuple=True)
    steps = AlphaSettings(settings.alpha_iterations, settings.lr_root, settings.decay)
    on_cpu = job.x.device.type == "cpu"
    parts: list[Subproblems] = []
    broken: Broken = {}
    size = fitting(shared.layout.floats, job.x.device, job.x.dtype, settings.batch)
    for some in torch.split(torch.arange(len(image), device=image.device), size):
        where, goal = image[some], target[image[some], row[some]]
        function = LowerBound(shared.bounds, where, shared.margins(where, goal))
        alpha, beta, bound = function.start(), function.no_splits(), margins[where, row[some]]
        if not late():
            # On a GPU a look at the clock in every step would make it wait.
            found = optimise(function, alpha, beta, steps, early=on_cpu, late=late if on_cpu else never)
            alpha, bound = found.alpha, torch.maximum(found.bound, bound)
            margins[where, row[some]] = bound
            point = shared.corner(where, found.rows)
            broken |= _confirmed(job, images, where, point, shared.margin_at(where, point))
        parts.append(
            Subproblems(where, goal, bound, alpha, torch.zeros_like(where), function.neuron, function.sign, beta)
        )
    job.ledger.note(images, margins, "alpha-crown")
    return Subproblems.cat(parts), broken


def _sorted(
    job: Job, images: list[int], shared: Images, sub: Subproblems, margins: Tensor, broken: Broken
) -> Outcome[OpenImages]:
    """Verdicts for images that are broken or proved; the others, with their unproved margins, stay open."""
    out = Outcome[OpenImages]()
    done = proved(margins).all(1).tolist()
    for place, image in enumerate(images):
        if place in broken:
            point, margin = broken[place]
            out.decided.append(job.ledger.verdict(image, "falsified", counterexample=point, margin=margin))
        elif done[place]:
            out.decided.append(job.ledger.verdict(image, "verified"))
    left = [place not in broken and not done[place] for place in range(len(images))]
    if any(left):
        keep = torch.tensor(left, device=margins.device)
        floor = torch.where(proved(margins), margins, torch.inf).amin(1)[keep]
        chosen = sub.at(keep[sub.image] & ~proved(sub.bound))
        out.rest.append(OpenImages(shared.at(keep), replace(chosen, image=(keep.cumsum(0) - 1)[chosen.image]), floor))
    return out


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


def _without_branching(job: Job, crowned: Crowned) -> list[Decided]:
    """Sigmoid and tanh have no kink to split at: optimised lines prove the rest or leave a gap."""
    settings, images = job.settings, crowned.images
    late = job.limit(images)
    with job.ledger.share(images):
        alpha = AlphaSettings(settings.alpha_iterations, settings.lr_root, settings.decay)
        method = METHODS["alpha-crown"][1]
        found = guard_lower(bound_specification(crowned.prepared, crowned.C[:, None], method, alpha, late)[:, 0])
        best = torch.maximum(found, crowned.margins)
        job.ledger.note(images, best, "alpha-crown")
        done = proved(best).all(1).tolist()
    reason = "timeout" if late() else "gap"
    return [
        job.ledger.verdict(image, "verified") if ok else job.ledger.verdict(image, "unknown", reason=reason)
        for image, ok in zip(images, done, strict=True)
    ]
