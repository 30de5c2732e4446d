"""The stages that prove without branching: CROWN, then optimised lines on the margins that are left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lipgraft.bounds.alpha_settings import AlphaSettings
from lipgraft.bounds.api import METHODS, bound_specification
from lipgraft.bounds.crown import Prepared, prepare
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.numerics import guard_lower, proved
from lipgraft.bounds.relaxations import unstable
from lipgraft.verify.bounding import Bounding, corner
from lipgraft.verify.counterexample import replay
from lipgraft.verify.job import Job
from lipgraft.verify.layout import Layout, piecewise_linear
from lipgraft.verify.ledger import Decided
from lipgraft.verify.memory import fitting
from lipgraft.verify.opened import Opened
from lipgraft.verify.optimise import Steps, optimise
from lipgraft.verify.refine import refine
from lipgraft.verify.roots import Roots
from lipgraft.verify.round import margin_at
from lipgraft.verify.subproblems import Subproblems


@dataclass
class Bounded:
    """decided: final verdicts; open: the images that are left for branch and bound, if any."""

    decided: list[Decided] = field(default_factory=list)
    open: Opened | None = None


@torch.no_grad()
def bounded(job: Job, images: list[int]) -> Bounded:
    """CROWN for all images, optimised lines for the margins that CROWN leaves open."""
    out = Bounded()
    ledger, settings = job.ledger, job.settings
    with ledger.share(images):
        index = job.index(images)
        prepared = prepare(job.network, job.box[index])
        target, C = other_classes(job.y[index], job.network.output_shape[0], job.x.dtype)
        margins = guard_lower(bound_specification(prepared, C[:, None], METHODS["crown"][1], AlphaSettings())[:, 0])
        _note(job, images, margins, "crown")
        for image, share in zip(images, unstable_share(prepared).tolist(), strict=True):
            ledger.unstable[image] = share
        done = proved(margins).all(1)
        finite = _finite(prepared) & torch.isfinite(margins).all(1)
    flags = list(zip(images, done.tolist(), finite.tolist(), strict=True))
    out.decided += [ledger.verdict(image, "verified") for image, is_done, _ in flags if is_done]
    reason = "the bounds are not finite: the network's numbers are too large"
    out.decided += [
        ledger.verdict(image, "error", reason=reason) for image, is_done, ok in flags if not (is_done or ok)
    ]
    rest = [place for place, (_, is_done, ok) in enumerate(flags) if ok and not is_done]
    if not rest:
        return out
    some = torch.tensor(rest, device=job.x.device)
    remaining = [images[place] for place in rest]
    if not piecewise_linear(job.network):
        out.decided += _by_alpha_alone(job, remaining, prepared, some, C, margins)
        return out
    with ledger.share(remaining):
        intervals = [(lower[some], upper[some]) for lower, upper in prepared.intervals]
        box = (job.box.lower[index[some]], job.box.upper[index[some]])
        steps = Steps(settings.refine_iterations, settings.lr_root, settings.lr_beta, settings.decay)
        intervals = refine(job.network, intervals, box, settings.refine, steps, settings.batch, job.late)
        roots = Roots.of(Layout.of(job.network, job.network.output), intervals, index[some], job.y[index[some]], box)
        margins = margins[some]
        sub, broken = _optimised(job, remaining, roots, target[some], margins)
    _sort(job, remaining, roots, sub, margins, broken, out)
    return out


def other_classes(y: Tensor, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """For each image the S wrong classes, (B, S), and the rows "true minus wrong", (B, S, classes)."""
    target = torch.arange(classes - 1, device=y.device).expand(len(y), -1)
    target = target + (target >= y[:, None])
    eye = torch.eye(classes, dtype=dtype, device=y.device)
    return target, eye[y][:, None] - eye[target]


def unstable_share(prepared: Prepared) -> Tensor:
    """(B,): the share of all neurons, grafted ones included, that are unstable and not grafted.

    The ReLUs that stand for max pooling are no neurons of the model, and do not count.
    """
    counts, total = torch.zeros(len(prepared.box), device=prepared.box.lower.device), 0
    for _, node in prepared.network.activations():
        if node.auxiliary:
            continue
        loose = unstable(node, *prepared.intervals[node.inputs[0]]).flatten(1)
        counts, total = counts + loose.sum(1), total + loose.shape[1]
    return counts / max(total, 1)


Broken = dict[int, tuple[Tensor, float]]
"""Counterexample and margin of images, by their place in a list."""


def _optimised(
    job: Job, images: list[int], roots: Roots, target: Tensor, margins: Tensor
) -> tuple[Subproblems, Broken]:
    """Optimise the lines of every margin that is not proved; margins (B, S) is improved in place.

    When the run's time is over, the margins that are left only get a bound with the lines that they start from.
    """
    settings = job.settings
    image, row = torch.nonzero(~proved(margins), as_tuple=True)
    steps = Steps(settings.alpha_iterations, settings.lr_root, settings.lr_beta, settings.decay)
    early = job.x.device.type == "cpu"
    parts: list[Subproblems] = []
    broken: Broken = {}
    size = fitting(roots.layout, job.x.device, job.x.dtype, settings.batch)
    for some in torch.split(torch.arange(len(image), device=image.device), size):
        where, goal = image[some], target[image[some], row[some]]
        none = where.new_zeros(len(some), 0)
        bare = none.to(margins.dtype)
        bounding = Bounding(roots, where, roots.margins(where, goal), none, bare)
        steps = replace(steps, iterations=0) if job.late() else steps
        found = optimise(bounding, bounding.start(), bare, steps, early=early)
        bound = torch.maximum(found.bound, margins[where, row[some]])
        margins[where, row[some]] = bound
        parts.append(Subproblems(where, goal, bound, found.alpha, torch.zeros_like(where), none, bare, bare))
        point = corner(roots, where, found.rows)
        broken |= _confirmed(job, roots, where, point, margin_at(roots, where, point))
    _note(job, images, margins, "alpha-crown")
    return Subproblems.cat(parts), broken


def _sort(
    job: Job, images: list[int], roots: Roots, sub: Subproblems, margins: Tensor, broken: Broken, out: Bounded
) -> None:
    """Verdicts for images that are broken or proved; the others, with their unproved margins, stay open."""
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
        out.open = Opened(roots.at(keep), replace(chosen, image=(keep.cumsum(0) - 1)[chosen.image]), floor)


def _confirmed(job: Job, roots: Roots, image: Tensor, point: Tensor, margin: Tensor) -> Broken:
    """The images that have a point of negative margin which the model misclassifies indeed."""
    out: Broken = {}
    for row in torch.nonzero(margin < 0).flatten().tolist():
        place = int(image[row])
        if place not in out:
            seen = replay(job.model, point[row], int(roots.y[place]), roots.low[place], roots.high[place])
            if seen is not None:
                out[place] = seen
    return out


def _by_alpha_alone(
    job: Job, images: list[int], prepared: Prepared, some: Tensor, C: Tensor, margins: Tensor
) -> list[Decided]:
    """Sigmoid and tanh have no kink to split at: optimised lines prove the rest or leave a gap."""
    settings = job.settings
    with job.ledger.share(images):
        intervals: list[Interval] = [(lower[some], upper[some]) for lower, upper in prepared.intervals]
        lines = {i: line.at(some) for i, line in prepared.lines.items()}  # type: ignore[arg-type]
        chosen = Prepared(prepared.network, prepared.box[some], intervals, lines)
        alpha = AlphaSettings(iterations=settings.alpha_iterations, lr=settings.lr_root, decay=settings.decay)
        found = guard_lower(bound_specification(chosen, C[some][:, None], METHODS["alpha-crown"][1], alpha)[:, 0])
        best = torch.maximum(found, margins[some])
        _note(job, images, best, "alpha-crown")
        done = proved(best).all(1).tolist()
    return [
        job.ledger.verdict(image, "verified") if ok else job.ledger.verdict(image, "unknown", reason="gap")
        for image, ok in zip(images, done, strict=True)
    ]


def _note(job: Job, images: list[int], margins: Tensor, method: str) -> None:
    for image, worst in zip(images, margins.amin(1).tolist(), strict=True):
        job.ledger.margin[image], job.ledger.method[image] = worst, method


def _finite(prepared: Prepared) -> Tensor:
    """(B,): whether every bound that a relaxation uses is finite."""
    out = torch.ones(len(prepared.box), dtype=torch.bool, device=prepared.box.lower.device)
    for _, node in prepared.network.activations():
        for end in prepared.intervals[node.inputs[0]]:
            out &= torch.isfinite(end).flatten(1).all(1)
    return out
