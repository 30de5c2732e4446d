"""Counterexamples among the points where bounds are attained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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


def worst_rows(image: Tensor, margin: Tensor, images: int) -> Tensor:
    """For each image that is present, the row with its smallest margin. image, margin: (B,) -> (at most `images`,)."""
    least = torch.full((images,), torch.inf, dtype=margin.dtype, device=margin.device)
    least = least.scatter_reduce(0, image, margin, "amin")
    rows = torch.nonzero(margin == least[image]).flatten()
    first = torch.full((images,), len(image), dtype=torch.int64, device=image.device)
    first = first.scatter_reduce(0, image[rows], rows, "amin")
    return first[first < len(image)]
