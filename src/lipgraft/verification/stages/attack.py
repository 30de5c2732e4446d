"""The attack before any bound, and short ones from points that a bound names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipgraft.attacks.ascent import ascend
from lipgraft.attacks.methods import pgd_steps, target_margin, worst_margin
from lipgraft.attacks.search import default_batch, search
from lipgraft.bounds.memory import Late, affordable
from lipgraft.inputs import seeded
from lipgraft.network import call, evaluated
from lipgraft.verification.job import Job
from lipgraft.verification.ledger import Decided, Outcome

SHARE = 0.5
"""The share of its time that an image may be attacked for; the rest is for proofs."""


def attack(job: Job, images: list[int]) -> Outcome[int]:
    """What the attack breaks, and the model confirms, is falsified. The attack's time is not the verifier's."""
    settings, ledger = job.settings.attack, job.ledger
    if not settings.restarts or not images:
        ledger.before_proofs(images)
        return Outcome(rest=list(images))
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
        generator=seeded(settings.seed + images[0], job.x.device),
        charge=_charging(job, images),
    )
    decided: list[Decided] = []
    for image in images:
        ledger.attacked[image] = found.complete
    for place in torch.nonzero(found.broken).flatten().tolist():
        seen = job.replay(images[place], found.x[place])
        if seen is not None:
            verdict = ledger.verdict(images[place], "falsified", method="pgd", counterexample=seen[0], margin=seen[1])
            decided.append(verdict)
    broken = {image for image, _ in decided}
    rest = [image for image in images if image not in broken]
    if found.complete:
        for image in rest:
            ledger.method[image] = "pgd"
    ledger.before_proofs(rest)
    return Outcome(decided, rest)


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


def short_attack(
    job: Job, images: Tensor, start: Tensor, target: Tensor, steps: int, late: Late
) -> tuple[Tensor, Tensor]:
    """A targeted ascent inside the images' boxes: the last points and their margins, (B, *shape) and (B,).

    images, target: (B,), the image and the class of each start (B, *shape).
    """
    low, high, y = job.inner.lower[images], job.inner.upper[images], job.y[images]
    with evaluated(job.model, freeze=True):
        point, _ = ascend(
            lambda x: call(job.model, x),
            start,
            low,
            high,
            lambda logits: target_margin(logits, y, target),
            eps=(high - low) / 2,
            steps=pgd_steps(steps, None),
            late=late,
        )
    return point, -torch.nan_to_num(worst_margin(job.logits(point), y), nan=-torch.inf)
