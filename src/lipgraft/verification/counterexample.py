"""A short attack from points that a bound names."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.attacks.ascent import ascend
from lipgraft.attacks.methods import pgd_steps, target_margin, worst_margin
from lipgraft.bounds.memory import Late
from lipgraft.network import call, evaluated
from lipgraft.verification.job import Job


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
