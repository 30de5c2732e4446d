"""Counterexamples among the points where bounds are attained, and short attacks from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lipgraft.attacks.ascent import ascend
from lipgraft.attacks.methods import pgd_steps, target_margin, worst_margin
from lipgraft.attacks.search import default_batch
from lipgraft.bounds.memory import Late, affordable, never
from lipgraft.network import call, evaluated
from lipgraft.verification.branch_and_bound.branching import Children
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.job import Job

Broken = dict[int, tuple[Tensor, float]]
"""Counterexample and margin of images, by their places among those that are looked at."""


def confirmed(
    job: Job, images: Images, image: Tensor, point: Tensor, margin: Tensor, stopped: Sequence[bool]
) -> Broken:
    """Show the model each image's worst point, if its margin is negative: what it misclassifies.

    image, margin: (B,), of the points; stopped: by image, whether nobody asks any more.
    """
    out: Broken = {}
    if not bool((margin < 0).any()):
        return out
    rows = worst_rows(image, margin, len(images))
    for row in rows[margin[rows] < 0].tolist():
        place = int(image[row])
        seen = None if stopped[place] else job.replay(int(images.number[place]), point[row])
        if seen is not None:
            out[place] = seen
    return out


def attacked(job: Job, images: Images, children: Children, stopped: Sequence[bool]) -> Iterator[Broken]:
    """A short attack from each image's worst point."""
    sub = children.sub
    rows = worst_rows(sub.image, children.margin, len(images))
    rows = rows[~torch.tensor(stopped, device=rows.device)[sub.image[rows]]]
    most = affordable(job.network, job.x.device, 1, default_batch(job.x.device))
    for some in torch.split(rows, most):
        number = images.number[sub.image[some]]
        late = job.limit(number.tolist())
        if len(some) == 0 or late():
            return
        with job.ledger.share(number.tolist()):
            # On a GPU a look at the clock in every step would make it wait.
            inside = late if number.device.type == "cpu" else never
            steps = job.settings.attack.search_steps
            found = short_attack(job, number, children.point[some], sub.target[some], steps, inside)
            broken = confirmed(job, images, sub.image[some], *found, stopped)
        yield broken


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


def worst_rows(image: Tensor, margin: Tensor, images: int) -> Tensor:
    """For each image that is present, the row with its smallest margin. image, margin: (B,) -> (at most `images`,)."""
    least = torch.full((images,), torch.inf, dtype=margin.dtype, device=margin.device)
    least = least.scatter_reduce(0, image, margin, "amin")
    rows = torch.nonzero(margin == least[image]).flatten()
    first = torch.full((images,), len(image), dtype=torch.int64, device=image.device)
    first = first.scatter_reduce(0, image[rows], rows, "amin")
    return first[first < len(image)]
