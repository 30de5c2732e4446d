"""The stages before branch and bound: clean prediction, the attack in two parts, CROWN between them, alpha-CROWN.

A stage takes images and says which of them it decides, and what goes on to the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from lipgraft.attacks.methods import misclassified, worst_margin
from lipgraft.attacks.search import default_batch, search
from lipgraft.bounds.alpha_crown import LowerBound, coded, decoded
from lipgraft.bounds.api import METHODS, bound_specification
from lipgraft.bounds.ascent import AlphaSettings, optimise
from lipgraft.bounds.crown import Prepared, prepare
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.margins import other_classes
from lipgraft.bounds.memory import Late, affordable, fitting, never
from lipgraft.bounds.reach import Reach
from lipgraft.bounds.refine import Sound, refine, takes_planes
from lipgraft.bounds.relaxations import unstable
from lipgraft.bounds.sound import guard_lower, proved
from lipgraft.inputs import seeded
from lipgraft.network import agree
from lipgraft.rounding import round_down
from lipgraft.verification.branch_and_bound.counterexamples import Broken
from lipgraft.verification.branch_and_bound.hidden import HiddenNeurons
from lipgraft.verification.branch_and_bound.images import Images, OpenImages
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.one_place import at_one_place
from lipgraft.verification.open_margins import OpenMargins
from lipgraft.verification.verdict import Decided, Outcome

SHARE = 0.5
"""The share of its time that an image may be attacked for; the rest is for proofs."""


def predict(job: Job, images: list[int]) -> Outcome[int]:
    """Misclassified images are falsified by themselves; over a point (eps 0) the margin at the point decides."""
    out = Outcome[int]()
    ledger = job.ledger
    with ledger.share(images):
        index = job.index(images)
        agree(job.network, job.model, job.box.lower[index], job.box.upper[index])
        logits = job.logits(job.x[index])
        margin = -worst_margin(logits, job.y[index])
        sound = torch.isfinite(logits).all(1) & job.finite[index]
        columns = (
            margin,
            sound,
            misclassified(-margin),
            proved(margin),
            (job.box.lower == job.box.upper)[index].flatten(1).all(1),
        )
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for image, (value, is_sound, is_wrong, is_proved, is_point) in zip(images, rows, strict=True):
        # Beside other images the model may round otherwise: what counts is what it says to the image alone.
        seen = job.replay(image, job.x[image]) if is_sound and is_wrong else None
        ledger.correct[image] = is_sound and seen is None
        if not is_sound:
            reason = "the image or its logits contain NaN or infinity"
            out.decided.append(ledger.verdict(image, "error", reason=reason))
        elif seen is not None:
            out.decided.append(
                ledger.verdict(image, "falsified", method="misclassified", counterexample=seen[0], margin=seen[1])
            )
        elif is_point and job.proof is None and is_proved:
            # The bound of a function over a point is its value there; every method would say the same.
            out.decided.append(ledger.verdict(image, "verified", method="crown", margin=value))
        elif is_point and job.proof is None:
            out.decided.append(ledger.verdict(image, "unknown", method="crown", reason="gap", margin=value))
        else:
            out.rest.append(image)
    return out


def screen(job: Job, images: list[int]) -> Outcome[int]:
    """The attack's first ascent, which breaks most of what can be broken: CROWN need not bound that."""
    out, complete = _attack(job, images, last=1)
    if complete:
        for image in out.rest:
            job.ledger.method[image] = "pgd"
    job.ledger.before_proofs(out.rest)
    return out


def attack(job: Job, images: list[int]) -> Outcome[int]:
    """The attack's other ascents, for images that CROWN does not prove. Their time is not the verifier's."""
    before = {image: job.ledger.seconds[image] for image in images}
    out, complete = _attack(job, images, first=1)
    for image in out.rest:
        job.ledger.attacked[image], job.ledger.seconds[image] = complete, before[image]
    return out


def _attack(job: Job, images: list[int], first: int = 0, last: int | None = None) -> tuple[Outcome[int], bool]:
    """What these ascents of the attack break, and the model confirms, is falsified. And whether there was time for all
    of them."""
    settings = job.settings.attack
    if not settings.restarts or not images:
        return Outcome(rest=list(images)), False
    index = job.index(images)
    found = search(
        job.model,
        job.x[index],
        job.y[index],
        job.eps[index],
        settings.method,
        steps=settings.steps,
        restarts=settings.restarts,
        low=job.low,
        high=job.high,
        batch=affordable(job.network, job.x.device, 1, default_batch(job.x.device)),
        generator=seeded(settings.seed + images[0] + first * len(job.x), job.x.device),
        first=first,
        last=last,
        charge=_charging(job, images),
    )
    decided: list[Decided] = []
    for place in torch.nonzero(found.broken).flatten().tolist():
        seen = job.replay(images[place], found.x[place])
        if seen is not None:
            job.ledger.unstable[images[place]] = None  # it does not reach the verifier proper
            verdict = job.ledger.verdict(
                images[place], "falsified", method="pgd", counterexample=seen[0], margin=seen[1]
            )
            decided.append(verdict)
    broken = {image for image, _ in decided}
    return Outcome(decided, [image for image in images if image not in broken]), found.complete


def _charging(job: Job, images: list[int]) -> Callable[[Tensor], bool]:
    """Charges every step to the images that took it, and ends the attack when their time for it is over."""
    late, last = job.limit(images, SHARE), job.ledger.now()

    def charge(rows: Tensor) -> bool:
        nonlocal last
        now = job.ledger.now()
        steps = torch.bincount(rows, minlength=len(images)).tolist()
        for image, count in zip(images, steps, strict=True):
            job.ledger.charge([image], (now - last) * count / len(rows))
        last = now
        return late()

    return charge


@torch.no_grad()
def crown(job: Job, images: list[int]) -> Outcome[OpenMargins]:
    """All margins of the images by CROWN: what that decides, and the rest."""
    ledger, late = job.ledger, job.limit(images)
    with ledger.share(images):
        index = job.index(images)
        if job.proof is None:
            prepared = prepare(job.network, job.box[index], late=late)
        else:
            prepared = prepare(
                job.proof,
                job.exact_box[index],
                late=late,
                sound_for=job.x.dtype,
                hardware=job.settings.speaks_of == "float32",
            )
        target, C = other_classes(job.y[index], job.network.output_shape[0], prepared.box.lower.dtype)
        margins = guard_lower(bound_specification(prepared, C[:, None], METHODS["crown"][1], AlphaSettings())[:, 0])
        margins = round_down(margins, job.x.dtype)
        ledger.note(images, margins, "crown")
        if ledger.drafts is not None:
            ledger.drafts.begin(images, prepared, job.x.dtype)
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
    left = OpenMargins(images, prepared.intervals, target, margins, prepared.rounding, prepared.errors)
    return Outcome(decided, [left.at(rest)] if rest else [])


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


def _finite(prepared: Prepared) -> Tensor:
    """(B,): whether every bound that a relaxation uses is finite."""
    out = torch.ones(len(prepared.box), dtype=torch.bool, device=prepared.box.lower.device)
    for _, node in prepared.network.activations():
        for end in prepared.intervals[node.inputs[0]]:
            out &= torch.isfinite(end).flatten(1).all(1)
    return out


@dataclass(frozen=True)
class Pass:
    """One of the times that `alpha_crown` is asked about an image that stays open.

    refines: with optimised bounds of hidden neurons. last: what it leaves open can be branched on.
    """

    refines: bool
    last: bool


LAST = Pass(refines=True, last=True)


def passes(job: Job) -> tuple[Pass, ...]:
    """Optimised bounds of hidden neurons cost many times what the margins do, so they are for images that need them.

    In most convolutional networks they wait until branching has shown which ones do.
    """
    settings = job.settings.optimise
    refines = settings.refine != "none" and settings.refine_iterations > 0 and not HiddenNeurons(job).refines
    return (Pass(refines=False, last=False), LAST) if refines else (Pass(refines=False, last=True),)


@torch.no_grad()
def alpha_crown(job: Job, left: OpenMargins, now: Pass = LAST) -> Outcome[OpenImages]:
    """Optimised lines for the margins that CROWN leaves open. left: its margins are improved in place."""
    images, margins, late = left.images, left.margins, job.limit(left.images)
    with job.ledger.share(images):
        index = job.index(images)
        reach: dict[int, Reach] = {}
        intervals = _refined(job, left, late, reach) if now.refines else left.intervals
        shared = _shared(job, index, intervals, left, reach)
        # Who needs all steps gets them after the bounds of hidden neurons.
        steps = job.settings.optimise.iterations if now.last else -(-job.settings.optimise.iterations // 2)
        sub, broken = _margins(job, images, shared, left.target, margins, steps, late)
        if reach and shared.places is not None:
            sub = at_one_place(job, left, intervals, shared, sub, late)
    proved_margins = proved(margins)
    done = proved_margins.all(1)
    if job.ledger.drafts is not None:
        job.ledger.drafts.add(shared, sub.at(proved(sub.bound) & (done[sub.image] | now.last)))
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


def _refined(job: Job, left: OpenMargins, late: Late, reach: dict[int, Reach]) -> list[Interval]:
    """The intervals of all nodes with optimised bounds of hidden neurons: all subproblems of an image gain by them."""
    settings, drafts = job.settings.optimise, job.ledger.drafts
    alpha = AlphaSettings(settings.refine_iterations, settings.lr, settings.decay)
    keep = None if drafts is None else partial(drafts.improved, left.images)
    sound = None
    if job.proof is not None and left.rounding is not None:
        sound = Sound(job.proof, left.rounding, left.errors, keep)
    most = job.settings.branch.batch
    return refine(job.network, left.intervals, settings.refine, alpha, most, late, sound, reach)


def _shared(
    job: Job, index: Tensor, intervals: list[Interval], left: OpenMargins, reach: dict[int, Reach] | None = None
) -> Images:
    """What all subproblems of these images share."""
    reach = reach or {}
    layout = Layout.of(job.network, job.network.output)
    proof = None
    if job.proof is None:
        bounds = replace(NeuronBounds.of(layout, intervals), reach=reach)
    else:
        proof = NeuronBounds.of(Layout.of(job.proof, job.proof.output), intervals, left.rounding, left.errors)
        proof = replace(proof, reach=reach)
        bounds = proof.searched(layout, job.x.dtype)
    return Images(
        bounds,
        index,
        job.y[index],
        (job.box.lower[index], job.box.upper[index]),
        (job.inner.lower[index], job.inner.upper[index]),
        proof,
        *_places(job, bounds),
    )


def _places(job: Job, bounds: NeuronBounds) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Room for the places of all margins, where planes around curves are of use; a certificate has none for planes."""
    if job.ledger.drafts is not None or not takes_planes(bounds):
        return None, None
    lower, classes = bounds.root[0], job.network.output_shape[0]
    places = lower.new_zeros(len(lower), classes, *lower.shape[1:], dtype=torch.uint8)
    return places, lower.new_zeros(len(lower), classes, dtype=torch.uint8)


def _margins(
    job: Job, images: list[int], shared: Images, target: Tensor, margins: Tensor, iterations: int, late: Late
) -> tuple[Subproblems, Broken]:
    """Optimise the lines of every margin that is not proved, in so many steps; margins (B, S) is improved in place.

    When the time is over, the margins that are left keep CROWN's bounds and lines.
    """
    settings = job.settings.optimise
    image, row = torch.nonzero(~proved(margins), as_tuple=True)
    steps = AlphaSettings(iterations, settings.lr, settings.decay)
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
            if shared.places is not None and shared.lifted is not None:
                for level in (1, 2) if shared.bounds.reach else (1,):
                    wanted = torch.full_like(goal, level)
                    place = coded(function.best_place(found.alpha, beta, wanted))
                    planes = function.exact_at(decoded(place, job.x.dtype), wanted)
                    again = optimise(planes, found.alpha, beta, steps, early=on_cpu, late=late if on_cpu else never)
                    better = again.bound > found.bound
                    shared.places[where[better], goal[better]] = place[better]
                    shared.lifted[where[better], goal[better]] = level
                    found = found.or_better(again)
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
