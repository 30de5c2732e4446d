"""The whole way of a batch of images: clean prediction, attack, CROWN, optimised lines, branch and bound.

Cheap stages run on groups of images, and deliver what they decide; all images that are left then share one pool.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from lipgraft.attacks.search import default_batch
from lipgraft.network import full_precision, stepwise
from lipgraft.verification.bab import BranchAndBound, Watch
from lipgraft.verification.incomplete import Crowned, crown, optimised
from lipgraft.verification.job import Job, finite_weights
from lipgraft.verification.ledger import Decided
from lipgraft.verification.memory import affordable, in_halves
from lipgraft.verification.opened import Opened
from lipgraft.verification.stages import Sorted, attacked, clean

CPU_GROUP = 32
"""Images that are attacked and bounded together on a CPU, at most: more would not be faster, and verdicts come late."""

NEURONS = 150
"""CROWN costs an image about one pass through the network for this many neurons: each needs part of a pass."""

GRACE = 1.0
"""Seconds after the end of the run in which clean predictions, which cost next to nothing, are still made."""


def cascade(job: Job, watch: Watch | None = None) -> Iterator[Decided]:
    """(place in the batch, verdict) of every image, as they end."""
    if not finite_weights(job.network):
        reason = "the model's weights contain NaN or infinity"
        return iter([job.ledger.verdict(image, "error", reason=reason) for image in range(len(job.x))])
    steps = _proofs(job, watch) if job.settings.recheck == "none" else _rechecked(job, watch)
    return stepwise(full_precision, steps)


def _proofs(job: Job, watch: Watch | None) -> Iterator[Decided]:
    early: list[Decided] = []
    right: list[int] = []
    size = affordable(job.network, job.x.device, 1, default_batch(job.x.device))
    for first in range(0, len(job.x), size):
        images = list(range(first, min(first + size, len(job.x))))
        named = _guarded(job, clean, images) if not _past(job, GRACE) else Sorted(rest=images)
        early += named.decided
        right += named.rest
    size = job.settings.images if job.x.device.type == "cuda" else min(job.settings.images, CPU_GROUP)
    waiting: list[Opened] = []
    neurons = sum(math.prod(node.shape) for _, node in job.network.activations())
    piece = affordable(job.network, job.x.device, 1 + neurons // NEURONS, size)
    turn = job.settings.attack_restarts > 0 and not job.late()
    for first in range(0, len(right), size):
        group = right[first : first + size]
        survived = Sorted(rest=group) if job.late() else _guarded(job, attacked, group)
        # An image that needs no attack counts as attacked where its neighbours are: RA speaks of both kinds.
        turn = job.ledger.attacked[group[0]]
        known = sum(image < group[-1] for image, _ in early)
        yield from _with_turn(early[:known], turn)
        early = early[known:]
        yield from survived.decided
        yield from _bounded(job, survived.rest, piece, waiting)
    yield from _with_turn(early, turn)
    if waiting:
        yield from BranchAndBound(job, Opened.cat(waiting), watch).run()


def _with_turn(decided: list[Decided], turn: bool) -> Iterator[Decided]:
    return ((image, replace(verdict, attacked=turn)) for image, verdict in decided)


def _past(job: Job, grace: float) -> bool:
    limit = job.settings.total_seconds
    return limit is not None and job.ledger.now() > limit + grace


def _guarded(job: Job, stage, images: list[int]) -> Sorted:  # type: ignore[no-untyped-def]
    """A stage over images; those that make it fail are decided as such, alone."""

    def failed(some: list[int], reason: str) -> list[Sorted]:
        return [Sorted(decided=[job.ledger.failed(image, reason) for image in some])]

    out = Sorted()
    for part in in_halves(images, lambda some: [stage(job, some)], failed):
        out.decided += part.decided
        out.rest += part.rest
    return out


def _bounded(job: Job, images: list[int], size: int, waiting: list[Opened]) -> Iterator[Decided]:
    """CROWN in pieces, then optimised lines for what a piece leaves open; what they leave open joins `waiting`."""
    ledger = job.ledger
    while images:
        late = job.late()
        over = [image for image in images if late or job.out_of_time(image)]
        yield from (ledger.verdict(image, "unknown", reason="timeout") for image in over)
        images = [image for image in images if not (late or job.out_of_time(image))]
        if not images:
            return
        piece, images = images[:size], images[size:]
        rest: list[Crowned] = []
        yield from _failsafe(job, piece, partial(_crown, job, rest))
        for crowned in rest:
            yield from _failsafe(job, crowned.images, partial(_lines, job, crowned, waiting))


def _failsafe(job: Job, images: list[int], work: Callable[[list[int]], list[Decided]]) -> list[Decided]:
    return in_halves(images, work, lambda some, reason: [job.ledger.failed(image, reason) for image in some])


def _crown(job: Job, rest: list[Crowned], images: list[int]) -> list[Decided]:
    decided, crowned = crown(job, images)
    if crowned.images:
        rest.append(crowned)
    return decided


def _lines(job: Job, crowned: Crowned, waiting: list[Opened], images: list[int]) -> list[Decided]:
    found = optimised(job, crowned.at([crowned.images.index(image) for image in images]))
    if found.open is not None:
        waiting.append(found.open)
    return found.decided


def _rechecked(job: Job, watch: Watch | None) -> Iterator[Decided]:
    """Proofs are repeated from the start in double precision; an image whose proof does not repeat is "unknown".

    The box is built anew from the pixels in double precision, and the attack and the search for counterexamples are
    left out. The image's limit of time counts both proofs.
    """
    verified: list[Decided] = []
    for image, verdict in _proofs(job, watch):
        if verdict.status == "verified":
            verified.append((image, verdict))
        else:
            yield image, verdict
    if not verified:
        return
    index = job.index([image for image, _ in verified])
    settings = replace(job.settings, recheck="none", attack_restarts=0, search_every=0)
    model = copy.deepcopy(job.model).double()
    x, eps, began = job.x[index].double(), job.eps[index], job.ledger.began
    if job.low is not None or job.high is not None:
        x = x.clamp(job.low, job.high)  # the model's type may have rounded an end of the range
    again = Job.of(model, x, job.y[index], eps, job.low, job.high, settings, began)
    again.ledger.spent = [job.ledger.spent[image] for image, _ in verified]
    for place, repeated in _proofs(again, watch):
        image, verdict = verified[place]
        seconds, subproblems = verdict.seconds + repeated.seconds, verdict.subproblems + repeated.subproblems
        if repeated.status == "verified":
            yield image, replace(verdict, seconds=seconds, subproblems=subproblems, margin=repeated.margin)
        else:
            reason = "timeout" if repeated.reason == "timeout" else "recheck"
            doubt = replace(verdict, status="unknown", reason=reason, margin=repeated.margin)
            yield image, replace(doubt, seconds=seconds, subproblems=subproblems)
