"""The stages before any bound: the clean prediction and the attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lipgraft.attacks.methods import misclassified, worst_margin
from lipgraft.attacks.search import default_batch, search
from lipgraft.bounds.numerics import proved
from lipgraft.inputs import seeded
from lipgraft.network import agree
from lipgraft.verification.job import Job
from lipgraft.verification.ledger import Decided
from lipgraft.verification.memory import affordable

ATTACK_SHARE = 0.5
"""The share of its time that an image may be attacked for; the rest is for proofs."""


@dataclass
class Sorted:
    """The images that a stage decided, and those that go on."""

    decided: list[Decided] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)


def clean(job: Job, images: list[int]) -> Sorted:
    """Misclassified images are falsified by themselves; over a point (eps 0) the margin at the point decides."""
    out = Sorted()
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
        ledger.correct[image] = is_sound and not is_wrong
        if not is_sound:
            reason = "the image or its logits contain NaN or infinity"
            out.decided.append(ledger.verdict(image, "error", reason=reason))
        elif is_wrong:
            point = job.x[image].cpu().clone()
            out.decided.append(
                ledger.verdict(image, "falsified", method="misclassified", counterexample=point, margin=value)
            )
        elif is_point and is_proved:
            # The bound of a function over a point is its value there; every method would say the same.
            out.decided.append(ledger.verdict(image, "verified", method="crown", margin=value))
        elif is_point:
            out.decided.append(ledger.verdict(image, "unknown", method="crown", reason="gap", margin=value))
        else:
            out.rest.append(image)
    return out


def attacked(job: Job, images: list[int]) -> Sorted:
    """What the attack breaks, and the model confirms, is falsified. The attack's time is not the verifier's."""
    settings, ledger = job.settings, job.ledger
    if not settings.attack_restarts or not images:
        ledger.before_proofs(images)
        return Sorted(rest=list(images))
    index = job.index(images)
    found = search(
        job.model,
        job.x[index],
        job.y[index],
        job.eps[index],
        settings.attack,
        steps=settings.attack_steps,
        restarts=settings.attack_restarts,
        low=job.low,
        high=job.high,
        batch=affordable(job.network, job.x.device, 1, default_batch(job.x.device)),
        generator=seeded(settings.seed + images[0], job.x.device),
        charge=_charging(job, images),
    )
    out = Sorted()
    for image in images:
        ledger.attacked[image] = found.complete
    for place in torch.nonzero(found.broken).flatten().tolist():
        seen = job.replay(images[place], found.x[place])
        if seen is not None:
            verdict = ledger.verdict(images[place], "falsified", method="pgd", counterexample=seen[0], margin=seen[1])
            out.decided.append(verdict)
    decided = {image for image, _ in out.decided}
    out.rest = [image for image in images if image not in decided]
    if found.complete:
        for image in out.rest:
            ledger.method[image] = "pgd"
    ledger.before_proofs(out.rest)
    return out


def _charging(job: Job, images: list[int]) -> Callable[[Tensor], bool]:
    """Charges every step to the images that took it, and ends the attack when their time for it is over."""
    late, last = job.limit(images, ATTACK_SHARE), job.ledger.now()

    def charge(rows: Tensor) -> bool:
        nonlocal last
        now = job.ledger.now()
        steps = torch.bincount(rows, minlength=len(images)).tolist()
        for image, count in zip(images, steps, strict=True):
            job.ledger.charge([image], (now - last) * count / len(rows))
        last = now
        return late()

    return charge
