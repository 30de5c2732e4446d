"""The whole way of a batch of images: clean prediction, attack, CROWN, optimised lines, branch and bound.

Cheap stages run on groups of images, and deliver what they decide; all images that are left then share one pool.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

from lipgraft.network import full_precision
from lipgraft.verify.bab import BranchAndBound, Watch
from lipgraft.verify.incomplete import bounded
from lipgraft.verify.job import Job, finite_weights
from lipgraft.verify.ledger import Decided
from lipgraft.verify.memory import in_halves
from lipgraft.verify.opened import Opened
from lipgraft.verify.stages import Sorted, attacked, clean


def cascade(job: Job, watch: Watch | None = None) -> Iterator[Decided]:
    """(place in the batch, verdict) of every image, as they end."""
    if not finite_weights(job.network):
        reason = "the model's weights contain NaN or infinity"
        yield from (job.ledger.verdict(image, "error", reason=reason) for image in range(len(job.x)))
        return
    with full_precision():
        if job.settings.recheck == "none":
            yield from _proofs(job, watch)
        else:
            yield from _rechecked(job, watch)


def _proofs(job: Job, watch: Watch | None) -> Iterator[Decided]:
    waiting: list[Opened] = []
    size = job.settings.images
    for first in range(0, len(job.x), size):
        named = _guarded(job, clean, list(range(first, min(first + size, len(job.x)))))
        late = job.late()
        # Where the attack has its turn, an image that needs none counts as attacked: RA is over both.
        turn = not late and job.settings.attack_restarts > 0
        yield from ((image, replace(verdict, attacked=turn)) for image, verdict in named.decided)
        if late:
            yield from (job.ledger.verdict(image, "unknown", reason="timeout") for image in named.rest)
            continue
        survived = _guarded(job, attacked, named.rest)
        yield from survived.decided
        decided, opened = _bounded(job, survived.rest)
        waiting += opened
        yield from decided
    if waiting:
        yield from BranchAndBound(job, Opened.cat(waiting), watch).run()


def _guarded(job: Job, stage, images: list[int]) -> Sorted:  # type: ignore[no-untyped-def]
    """A stage over images; those that make it fail are decided as such, alone."""

    def failed(some: list[int], reason: str) -> list[Sorted]:
        return [Sorted(decided=[job.ledger.failed(image, reason) for image in some])]

    out = Sorted()
    for part in in_halves(images, lambda some: [stage(job, some)], failed):
        out.decided += part.decided
        out.rest += part.rest
    return out


def _bounded(job: Job, images: list[int]) -> tuple[list[Decided], list[Opened]]:
    """The same for the stages that bound."""
    opened: list[Opened] = []

    def work(some: list[int]) -> list[Decided]:
        result = bounded(job, some)
        if result.open is not None:
            opened.append(result.open)
        return result.decided

    decided = in_halves(images, work, lambda some, reason: [job.ledger.failed(image, reason) for image in some])
    return decided, opened


def _rechecked(job: Job, watch: Watch | None) -> Iterator[Decided]:
    """Proofs are repeated from the start in double precision; an image whose proof does not repeat is "unknown".

    The box is built anew from the pixels in double precision, the attack and the search for counterexamples are left
    out, and the image gets its whole time budget again.
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
    again = Job.of(model, job.x[index].double(), job.y[index], job.exact_eps[index], job.low, job.high, settings)
    again.ledger.began = job.ledger.began
    for place, repeated in _proofs(again, watch):
        image, verdict = verified[place]
        seconds, subproblems = verdict.seconds + repeated.seconds, verdict.subproblems + repeated.subproblems
        if repeated.status == "verified":
            yield image, replace(verdict, seconds=seconds, subproblems=subproblems, margin=repeated.margin)
        else:
            doubt = replace(verdict, status="unknown", reason="recheck", margin=repeated.margin)
            yield image, replace(doubt, seconds=seconds, subproblems=subproblems)
