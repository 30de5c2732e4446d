"""The whole way of a batch of images: clean prediction, attack, CROWN, alpha-CROWN, branch and bound.

Cheap stages run on groups of images, and deliver what they decide; all images that are left then share one pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from lipgraft.attacks.search import default_batch
from lipgraft.bounds.memory import affordable, in_halves
from lipgraft.network import full_precision, stepwise
from lipgraft.verification.branch_and_bound.images import OpenImages
from lipgraft.verification.branch_and_bound.search import BranchAndBound, Watch
from lipgraft.verification.handover import Package, Relay
from lipgraft.verification.job import Job, finite_weights
from lipgraft.verification.ledger import Decided, Outcome
from lipgraft.verification.stages.alpha_crown import alpha_crown, passes
from lipgraft.verification.stages.attack import attack
from lipgraft.verification.stages.crown import OpenMargins, crown
from lipgraft.verification.stages.predict import predict

T = TypeVar("T")

CPU_GROUP = 32
"""Images that are attacked and bounded together on a CPU, at most: more would not be faster, and verdicts come late."""

NEURONS = 150
"""CROWN costs an image about one pass through the network for this many neurons: each needs part of a pass."""

BOUNDED = 4
"""Neurons that CROWN bounds, for each that is unstable in the end, at most: intervals leave more of them unstable."""

GRACE = 1.0
"""Seconds after the end of the run in which clean predictions, which cost next to nothing, are still made."""


def cascade(
    job: Job, watch: Watch | None = None, relay: Relay | None = None, package: Package | None = None
) -> Iterator[Decided]:
    """(place in the batch, verdict) of every image, as they end.

    relay: who may ask for some of the images while they are branched on; these have no verdict here.
    package: the images, whose branching has begun elsewhere and goes on.
    """
    if not finite_weights(job.network):
        reason = "the model's weights contain NaN or infinity"
        return iter([job.ledger.verdict(image, "error", reason=reason) for image in range(len(job.x))])
    if package is not None:
        return stepwise(full_precision, BranchAndBound.going_on(job, package, watch, relay).run())
    return stepwise(full_precision, _proofs(job, watch, relay))


def _proofs(job: Job, watch: Watch | None, relay: Relay | None) -> Iterator[Decided]:
    """Prediction, attack, CROWN, alpha-CROWN, branch and bound."""
    predicted = _predictions(job)
    early = predicted.decided
    open_images: list[OpenImages] = []
    attacked = job.settings.attack.restarts > 0 and not job.late()
    size = job.settings.images if job.x.device.type == "cuda" else min(job.settings.images, CPU_GROUP)
    loose = 1.0
    for group in _split(predicted.rest, size):
        survived = Outcome(rest=group) if job.late() else _failsafe(job, attack, group)
        # An image that needs no attack counts as attacked where its neighbours are: RA speaks of both kinds.
        attacked = job.ledger.attacked[group[0]]
        known = sum(image < group[-1] for image, _ in early)
        yield from _with_attacked(early[:known], attacked)
        early = early[known:]
        yield from survived.decided
        waiting = survived.rest
        while waiting:
            count = _crown_size(job, size, loose)
            images, waiting = waiting[:count], waiting[count:]
            in_time = _in_time(job, images)
            yield from in_time.decided
            crowned = _failsafe(job, crown, in_time.rest)
            yield from crowned.decided
            loose = max((share for image in images if (share := job.ledger.unstable[image]) is not None), default=loose)
            for margins in crowned.rest:
                optimised, still_open = Outcome[OpenImages](), margins.images
                for last in passes(job):
                    optimised = _failsafe(job, partial(_alpha_crown, margins, last), still_open)
                    yield from optimised.decided
                    still_open = [image for part in optimised.rest for image in part.images.number.tolist()]
                open_images += optimised.rest
    yield from _with_attacked(early, attacked)
    if open_images:
        yield from BranchAndBound(job, OpenImages.cat(open_images), watch, relay).run()


def _predictions(job: Job) -> Outcome[int]:
    """Clean predictions, which are made a little after the end of the run too."""
    limit = job.settings.limits.total_seconds
    end = math.inf if limit is None else limit + GRACE
    out = Outcome[int]()
    size = affordable(job.network, job.x.device, 1, default_batch(job.x.device))
    for images in _split(list(range(len(job.x))), size):
        out += Outcome(rest=images) if job.ledger.now() > end else _failsafe(job, predict, images)
    return out


def _alpha_crown(margins: OpenMargins, last: bool, job: Job, images: list[int]) -> Outcome[OpenImages]:
    return alpha_crown(job, margins.at([margins.images.index(image) for image in images]), last=last)


def _in_time(job: Job, images: list[int]) -> Outcome[int]:
    """The images whose time is not over, their own and that of the run."""
    late, ledger = job.late(), job.ledger
    over = [image for image in images if late or job.out_of_time(image)]
    decided = [ledger.verdict(image, "unknown", reason="timeout") for image in over]
    return Outcome(decided, [image for image in images if image not in over])


def _failsafe(job: Job, stage: Callable[[Job, list[int]], Outcome[T]], images: list[int]) -> Outcome[T]:
    """A stage over images; those that make it fail are decided as such, alone."""

    def failed(some: list[int], reason: str) -> list[Outcome[T]]:
        return [Outcome([job.ledger.failed(image, reason) for image in some])]

    return sum(in_halves(images, lambda some: [stage(job, some)], failed), Outcome[T]())


def _split(images: list[int], size: int) -> Iterator[list[int]]:
    return (images[first : first + size] for first in range(0, len(images), size))


def _crown_size(job: Job, most: int, loose: float) -> int:
    """How many images go through CROWN between two looks at the clock. loose: the largest share of neurons that was
    unstable in an image of the last group.

    Few at once leave a device idle in the stage after CROWN, and CROWN bounds the neurons alone that need it.
    """
    neurons = sum(math.prod(node.shape) for _, node in job.network.activations())
    bounded = min(neurons, int(BOUNDED * loose * neurons))
    return affordable(job.network, job.x.device, 1 + bounded // NEURONS, most)


def _with_attacked(decided: list[Decided], attacked: bool) -> Iterator[Decided]:
    return ((image, replace(verdict, attacked=attacked)) for image, verdict in decided)
