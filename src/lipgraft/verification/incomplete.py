"""The stages that prove without branching: CROWN, then optimised lines on the margins that are left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lipgraft.bounds.alpha_settings import AlphaSettings
from lipgraft.bounds.api import METHODS, bound_specification
from lipgraft.bounds.crown import Prepared, prepare
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.memory import Late
from lipgraft.bounds.numerics import guard_lower, proved
from lipgraft.bounds.relaxations import unstable
from lipgraft.verification.bounding import Bounding, corner
from lipgraft.verification.job import Job
from lipgraft.verification.layout import Layout, piecewise_linear
from lipgraft.verification.ledger import Decided
from lipgraft.verification.memory import fitting
from lipgraft.verification.opened import Opened
from lipgraft.verification.optimise import Steps, optimise
from lipgraft.verification.refine import refine
from lipgraft.verification.roots import Roots
from lipgraft.verification.round import margin_at
from lipgraft.verification.subproblems import Subproblems


@dataclass(frozen=True, eq=False)
class Crowned:
    """Images that CROWN leaves open. target: (B, S), the wrong classes; C: (B, S, classes); margins: (B, S)."""

    images: list[int]
    prepared: Prepared
    target: Tensor
    C: Tensor
    margins: Tensor

    def at(self, places: list[int]) -> Crowned:
        """Some of the images."""
        some = torch.tensor(places, dtype=torch.int64, device=self.margins.device)
        intervals: list[Interval] = [(lower[some], upper[some]) for lower, upper in self.prepared.intervals]
        lines = {i: line.at(some) for i, line in self.prepared.lines.items()}  # type: ignore[arg-type]
        prepared = Prepared(self.prepared.network, self.prepared.box[some], intervals, lines)
        images = [self.images[place] for place in places]
        return Crowned(images, prepared, self.target[some], self.C[some], self.margins[some].clone())


@dataclass
class Bounded:
    """decided: final verdicts; open: the images that are left for branch and bound, if any."""

    decided: list[Decided] = field(default_factory=list)
    open: Opened | None = None


@torch.no_grad()
def crown(job: Job, images: list[int]) -> tuple[list[Decided], Crowned]:
    """All margins of the images by CROWN: what that decides, and the rest."""
    ledger, late = job.ledger, job.limit(images)
    with ledger.share(images):
        index = job.index(images)
        prepared = prepare(job.network, job.box[index], late=late)
        target, C = other_classes(job.y[index], job.network.output_shape[0], job.x.dtype)
        margins = guard_lower(bound_specification(prepared, C[:, None], METHODS["crown"][1], AlphaSettings())[:, 0])
        _note(job, images, margins, "crown")
        for image, share in zip(images, unstable_share(prepared).tolist(), strict=True):
            ledger.unstable[image] = share
        done = proved(margins).all(1).tolist()
        finite = (_finite(prepared) & torch.isfinite(margins).all(1)).tolist()
    over = late()
    decided: list[Decided] = []
    rest: list[int] = []
    for place, image in enumerate(images):
        if done[place]:
            decided.append(ledger.verdict(image, "verified"))
        elif over:
            decided.append(ledger.verdict(image, "unknown", reason="timeout"))
        elif not finite[place]:
            reason = "the bounds are not finite: the network's numbers are too large"
            decided.append(ledger.verdict(image, "error", reason=reason))
        else:
            rest.append(place)
    return decided, Crowned(images, prepared, target, C, margins).at(rest)


@torch.no_grad()
def optimised(job: Job, crowned: Crowned) -> Bounded:
    """Optimised lines for the margins that CROWN leaves open."""
    if not piecewise_linear(job.network):
        return Bounded(_by_alpha_alone(job, crowned))
    images, settings = crowned.images, job.settings
    late = job.limit(images)
    with job.ledger.share(images):
        index = job.index(images)
        box = (job.box.lower[index], job.box.upper[index])
        inner = (job.inner.lower[index], job.inner.upper[index])
        steps = Steps(settings.refine_iterations, settings.lr_root, settings.lr_beta, settings.decay)
        intervals = refine(job.network, crowned.prepared.intervals, box, settings.refine, steps, settings.batch, late)
        layout = Layout.of(job.network, job.network.output)
        roots = Roots.of(layout, intervals, index, job.y[index], box, inner)
        margins = crowned.margins
        sub, broken = _margins(job, images, roots, crowned.target, margins, late)
    return _sorted(job, images, roots, sub, margins, broken)


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


def _margins(
    job: Job, images: list[int], roots: Roots, target: Tensor, margins: Tensor, late: Late
) -> tuple[Subproblems, Broken]:
    """Optimise the lines of every margin that is not proved; margins (B, S) is improved in place.

    When the time is over, the margins that are left keep CROWN's bounds and lines.
    """
    settings = job.settings
    image, row = torch.nonzero(~proved(margins), as_tuple=True)
    steps = Steps(settings.alpha_iterations, settings.lr_root, settings.lr_beta, settings.decay)
    on_cpu = job.x.device.type == "cpu"
    parts: list[Subproblems] = []
    broken: Broken = {}
    size = fitting(roots.layout, job.x.device, job.x.dtype, settings.batch)
    for some in torch.split(torch.arange(len(image), device=image.device), size):
        where, goal = image[some], target[image[some], row[some]]
        none = where.new_zeros(len(some), 0)
        bare = none.to(margins.dtype)
        bounding = Bounding(roots, where, roots.margins(where, goal), none, bare)
        alpha, bound = bounding.start(), margins[where, row[some]]
        if not late():
            # On a GPU a look at the clock in every step would make it wait.
            found = optimise(bounding, alpha, bare, steps, early=on_cpu, late=late if on_cpu else None)
            alpha, bound = found.alpha, torch.maximum(found.bound, bound)
            margins[where, row[some]] = bound
            point = corner(roots, where, found.rows)
            broken |= _confirmed(job, images, where, point, margin_at(roots, where, point))
        parts.append(Subproblems(where, goal, bound, alpha, torch.zeros_like(where), none, bare, bare))
    _note(job, images, margins, "alpha-crown")
    return Subproblems.cat(parts), broken


def _sorted(job: Job, images: list[int], roots: Roots, sub: Subproblems, margins: Tensor, broken: Broken) -> Bounded:
    """Verdicts for images that are broken or proved; the others, with their unproved margins, stay open."""
    out = Bounded()
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


def _by_alpha_alone(job: Job, crowned: Crowned) -> list[Decided]:
    """Sigmoid and tanh have no kink to split at: optimised lines prove the rest or leave a gap."""
    settings, images = job.settings, crowned.images
    late = job.limit(images)
    with job.ledger.share(images):
        alpha = AlphaSettings(iterations=settings.alpha_iterations, lr=settings.lr_root, decay=settings.decay)
        method = METHODS["alpha-crown"][1]
        found = guard_lower(bound_specification(crowned.prepared, crowned.C[:, None], method, alpha, late)[:, 0])
        best = torch.maximum(found, crowned.margins)
        _note(job, images, best, "alpha-crown")
        done = proved(best).all(1).tolist()
    reason = "timeout" if late() else "gap"
    return [
        job.ledger.verdict(image, "verified") if ok else job.ledger.verdict(image, "unknown", reason=reason)
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
