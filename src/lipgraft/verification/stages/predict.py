"""The clean prediction."""

from __future__ import annotations

import torch

from lipgraft.attacks.methods import misclassified, worst_margin
from lipgraft.bounds.numerics import proved
from lipgraft.network import agree
from lipgraft.verification.job import Job
from lipgraft.verification.ledger import Outcome


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
