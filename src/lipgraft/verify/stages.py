"""The stages before any bound: the clean prediction and the attack."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lipgraft.attack import evaluating
from lipgraft.attack.search import default_batch, search
from lipgraft.bounds.numerics import proved
from lipgraft.verify.counterexample import replay
from lipgraft.verify.job import Job
from lipgraft.verify.ledger import Decided


@dataclass
class Sorted:
    """The images that a stage decided, and those that go on."""

    decided: list[Decided] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)


@torch.no_grad()
def clean(job: Job, images: list[int]) -> Sorted:
    """Misclassified images are falsified by themselves; over a point (eps 0) the margin at the point decides."""
    out = Sorted()
    ledger = job.ledger
    with ledger.share(images), evaluating(job.model):
        index = job.index(images)
        logits = torch.cat([job.model(part) for part in torch.split(job.x[index], default_batch(job.x.device))])
        y = job.y[index][:, None]
        margin = logits.gather(1, y).squeeze(1) - logits.scatter(1, y, -torch.inf).amax(1)
        sound = torch.isfinite(logits).all(1) & job.finite[index]
        right = logits.argmax(1) == y.squeeze(1)
        columns = (margin, sound, right, proved(margin), (job.box.lower == job.box.upper)[index].flatten(1).all(1))
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for image, (value, is_sound, is_right, is_proved, is_point) in zip(images, rows, strict=True):
        ledger.correct[image] = is_sound and is_right
        if not is_sound:
            reason = "the image or its logits contain NaN or infinity"
            out.decided.append(ledger.verdict(image, "error", reason=reason))
        elif not is_right:
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
    settings = job.settings
    if not settings.attack_restarts or not images:
        _forget_time(job, images)
        return Sorted(rest=list(images))
    out = Sorted()
    with job.ledger.share(images):
        index = job.index(images)
        generator = torch.Generator(job.x.device).manual_seed(settings.seed + images[0])
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
            generator=generator,
        )
    broken = found.broken.tolist()
    for place, image in enumerate(images):
        job.ledger.attacked[image] = True
        seen = None
        if broken[place]:
            seen = replay(job.model, found.x[place], int(job.y[image]), job.box.lower[image], job.box.upper[image])
        if seen is None:
            out.rest.append(image)
        else:
            verdict = job.ledger.verdict(image, "falsified", method="pgd", counterexample=seen[0], margin=seen[1])
            out.decided.append(verdict)
    _forget_time(job, out.rest)
    return out


def _forget_time(job: Job, images: list[int]) -> None:
    """From here on the verifier's own time counts."""
    for image in images:
        job.ledger.seconds[image] = 0.0
