"""`verify`: the whole way of a batch of images, from clean prediction to branch and bound.

Cheap stages run on groups of images, and deliver what they decide; all images that are left then share one pool."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TypeVar

from torch import Tensor, nn

from lipgraft.attacks.search import default_batch
from lipgraft.bounds.memory import affordable, in_halves
from lipgraft.errors import SettingsError
from lipgraft.inputs import labels, pixels, seconds, settings_of
from lipgraft.network import full_precision, stepwise
from lipgraft.verification.branch_and_bound.branching import branching_named
from lipgraft.verification.branch_and_bound.images import OpenImages
from lipgraft.verification.branch_and_bound.search import BranchAndBound, Watch
from lipgraft.verification.handover import Package, Relay
from lipgraft.verification.job import Job, finite_weights
from lipgraft.verification.open_margins import OpenMargins
from lipgraft.verification.settings import VerifySettings
from lipgraft.verification.stages import Pass, alpha_crown, attack, crown, passes, predict, screen
from lipgraft.verification.verdict import Decided, Outcome, Verdict

T = TypeVar("T")

CPU_GROUP = 32
"""Images that are attacked and bounded together on a CPU: with more of them, verdicts come late."""

TOGETHER = 200
"""Passes through the network that attack and CROWN cost an image, about: of a small network more images go together."""

NEURONS = 150
"""CROWN costs an image about one pass through the network for this many neurons: each needs part of a pass."""

BOUNDED = 4
"""Neurons that CROWN bounds, for each that is unstable in the end, at most: intervals leave more of them unstable."""

GRACE = 1.0
"""Seconds after the end of the run in which clean predictions, which cost next to nothing, are still made."""


def verify(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float | Tensor,
    *,
    timeout: float | None = None,
    low: float | None = 0.0,
    high: float | None = 1.0,
    settings: VerifySettings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Verdict]:
    """Is every point within eps of x (in the maximum norm, inside [low, high]) classified as y? One verdict per image.

    An image is verified if the true logit is strictly the largest at every such point, falsified if a wrong logit is
    strictly larger than the true one at some point; a tie is neither. A verdict speaks of the model in evaluation mode
    with the weights that it stores: as a function of real numbers, or as float32 hardware evaluates it
    (settings.speaks_of). A model of half precision is computed with in single precision. The model is left as it was.

    x: (B, *shape), inside [low, high], any module of supported operations takes it; y: (B,) true classes; eps: a number
    or (B,).
    timeout: seconds of device time per image, 300 unless given here or in the settings.
    progress: called with the images decided so far and their number, such as `lipgraft.progress.bar` makes it.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Linear(2, 2)
        >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
        >>> x, y = torch.tensor([[0.8, 0.2], [0.52, 0.48]]), torch.tensor([0, 0])
        >>> [verdict.status for verdict in lg.verify(model, x, y, 0.1)]
        ['verified', 'falsified']
    """
    verdicts: dict[int, Verdict] = {}
    for image, verdict in verify_stream(model, x, y, eps, timeout=timeout, low=low, high=high, settings=settings):
        verdicts[image] = verdict
        if progress is not None:
            progress(len(verdicts), len(x))
    return [verdicts[image] for image in sorted(verdicts)]


def verify_stream(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float | Tensor,
    *,
    timeout: float | None = None,
    low: float | None = 0.0,
    high: float | None = 1.0,
    settings: VerifySettings | None = None,
    watch: Watch | None = None,
    certificates: bool = False,
    relay: Relay | None = None,
    package: Package | None = None,
) -> Iterator[Decided]:
    """`verify`, delivering (place in the batch, verdict) as images end. Wrong arguments are refused before the first.

    watch: called after every round of branch and bound with the number of subproblems bounded in it.
    certificates: verdicts of verified and falsified images come with what it takes to check them (see
        `interop.CertificateFolder`).
    relay: who may ask for some of the images while they are branched on, to go on with them elsewhere; those have no
        verdict here. Not with certificates, which would miss a part.
    package: such images; x, y and eps are theirs.
    """
    if certificates and (relay is not None or package is not None):
        raise SettingsError("images with certificates cannot be moved to another worker.")
    began = time.perf_counter()
    chosen = settings_of(settings, VerifySettings, VerifySettings())
    if timeout is not None:
        chosen = chosen.changed(limits={"timeout": seconds(timeout, "timeout")})
    branching_named(chosen.branch.rule)
    x = pixels(x, low, high)
    y = labels(y, len(x), x.device)
    if len(x) == 0:
        return iter(())
    return cascade(Job.of(model, x, y, eps, low, high, chosen, began, certificates=certificates), watch, relay, package)


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
    """Prediction, a first ascent, CROWN, the attack on what that leaves, alpha-CROWN, branch and bound."""
    predicted = _predictions(job)
    # What needs no attack waits until its neighbours have had theirs or will have none: RA speaks of both.
    held = predicted.decided
    open_images: list[OpenImages] = []
    size = _group_size(job)
    loose = 1.0
    attacked = job.settings.attack.restarts > 0 and not job.late()
    asked: tuple[Pass, ...] = ()
    for group in _split(predicted.rest, size):
        screened = Outcome(rest=group) if job.late() else _failsafe(job, screen, group)
        held = sorted(held + screened.decided, key=itemgetter(0))
        waiting = screened.rest
        while True:
            count = _crown_size(job, size, loose)
            images, waiting = waiting[:count], waiting[count:]
            in_time = _in_time(job, images)
            yield from in_time.decided
            crowned = _failsafe(job, crown, in_time.rest)
            loose = max((share for image in images if (share := job.ledger.unstable[image]) is not None), default=loose)
            survived, attacked = _attacked(job, [image for margins in crowned.rest for image in margins.images])
            end = waiting[0] if waiting else group[-1] + 1
            known = sum(image < end for image, _ in held)
            yield from _with_attacked(held[:known] + crowned.decided + survived.decided, attacked)
            held = held[known:]
            for margins in crowned.rest:
                still_open = [image for image in margins.images if image in survived.rest]
                optimised, asked = Outcome[OpenImages](), asked or passes(job)
                for now in asked:
                    optimised = _failsafe(job, partial(_alpha_crown, margins, now), still_open)
                    yield from optimised.decided
                    still_open = [image for part in optimised.rest for image in part.images.number.tolist()]
                open_images += optimised.rest
            if not waiting:
                break
    yield from _with_attacked(held, attacked)
    if open_images:
        yield from BranchAndBound(job, OpenImages.cat(open_images), watch, relay).run()


def _attacked(job: Job, images: list[int]) -> tuple[Outcome[int], bool]:
    """The attack on images that CROWN leaves open, and whether there was time for all of it."""
    if not job.settings.attack.restarts or job.late():
        return Outcome(rest=images), False
    survived = _failsafe(job, attack, images)
    return survived, all(job.ledger.attacked[image] for image in survived.rest)


def _predictions(job: Job) -> Outcome[int]:
    """Clean predictions, which are made a little after the end of the run too."""
    limit = job.settings.limits.total_seconds
    end = math.inf if limit is None else limit + GRACE
    out = Outcome[int]()
    size = affordable(job.network, job.x.device, 1, default_batch(job.x.device))
    for images in _split(list(range(len(job.x))), size):
        out += Outcome(rest=images) if job.ledger.now() > end else _failsafe(job, predict, images)
    return out


def _alpha_crown(margins: OpenMargins, now: Pass, job: Job, images: list[int]) -> Outcome[OpenImages]:
    places = [margins.images.index(image) for image in images]
    some = margins.at(places)
    out = alpha_crown(job, some, now)
    if job.ledger.drafts is None:  # a certificate has room for the proofs of one pass
        margins.margins[places] = some.margins
    return out


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


def _group_size(job: Job) -> int:
    """How many images go through the stages before branch and bound together."""
    most, device = job.settings.images, job.x.device
    return most if device.type == "cuda" else min(most, max(CPU_GROUP, affordable(job.network, device, TOGETHER, most)))


def _crown_size(job: Job, most: int, loose: float) -> int:
    """How many images go through CROWN between two looks at the clock. loose: the largest share of neurons that was
    unstable in an image of the last group.

    Few at once leave a device idle in the stage after CROWN, and CROWN bounds the neurons alone that need it.
    """
    neurons = sum(math.prod(node.shape) for _, node in job.network.activations())
    bounded = min(neurons, int(BOUNDED * loose * neurons))
    return affordable(job.network, job.x.device, 1 + bounded // NEURONS, most)


def _with_attacked(decided: list[Decided], attacked: bool) -> Iterator[Decided]:
    """What is known of these images counts for RA if their neighbours were attacked."""
    for image, verdict in decided:
        known = verdict.status in ("verified", "falsified")
        yield image, replace(verdict, attacked=attacked) if known else verdict
