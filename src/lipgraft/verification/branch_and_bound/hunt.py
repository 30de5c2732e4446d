"""The search for counterexamples beside the proofs: ascents from the worst points known, and from near them.

What ascents from the image itself and from random points do not find often lies near the worst points that they do
find. So each open image keeps a few of those; between rounds of branching, copies of them are changed here and there,
and climb by gradients that see past the kinks of neurons (`attacks.wide`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from lipgraft.attacks import wide
from lipgraft.attacks.methods import target_margin, worst_margin
from lipgraft.attacks.search import default_batch
from lipgraft.bounds.memory import Late, affordable, fitting, is_out_of_memory, never, release
from lipgraft.inputs import seeded
from lipgraft.verification.branch_and_bound.branching import Children
from lipgraft.verification.branch_and_bound.counterexamples import Broken, confirmed, worst_rows
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.subproblems import counted
from lipgraft.verification.job import Job

Starts = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Some of the rows, (S,) -> where their ascents begin, (S, *input shape), and the classes that they lead to, (S,)."""

KEPT, BYTES = 32, 2**28
"""Points kept of each image, fewer where they would take more memory than this."""
MOST = 32
"""Ascents of one image at a time; the next ones begin near what these have found."""
STEPS_PER_SUBPROBLEM = 2
"""How much an image is hunted: a step costs a few per cent of what bounding a subproblem does."""
APART = 1e-4
"""Points whose margins are closer than this count as one."""
FIRST_STEPS = 0.07, 2.0
"""The first step of an ascent, as a share of the box's half width, lies between these."""
SHARES = 0.005, 0.5
"""The share of inputs that is moved to an end of the box lies between these."""


class Hunt:
    """point: (I, K, *input shape), the worst points known of each image, worst first; margin: (I, K), inf where there
    is none; target: (I, K), the class that they lead to. waiting: (I,), steps that an image may still take."""

    def __init__(self, job: Job, images: Images) -> None:
        self.job, self.images = job, images
        shape, device = job.x.shape[1:], job.x.device
        size = max(1, len(images) * math.prod(shape) * job.x.element_size())
        kept = max(2, min(KEPT, BYTES // size))
        self.point = job.x.new_zeros(len(images), kept, *shape)
        self.margin = job.x.new_full((len(images), kept), torch.inf)
        self.target = torch.zeros(len(images), kept, dtype=torch.int64, device=device)
        self.waiting = torch.zeros(len(images), dtype=torch.int64, device=device)
        self.generator = seeded(job.settings.attack.seed, device)

    def after(self, rounds: int, children: Children, stopped: Sequence[bool]) -> Iterator[Broken]:
        """Counterexamples, looked for after some of the rounds of branching. children: of the last round."""
        image, every = children.sub.image, self.job.settings.attack.search_every
        self.waiting += STEPS_PER_SUBPROBLEM * counted(image, len(self.images))
        if not every or rounds % every:
            return
        rows = worst_rows(image, children.margin, len(self.images))
        rows = rows[~self._ended(stopped)[image[rows]]]
        places, point, target = image[rows], children.point[rows], children.sub.target[rows]
        self._keep(places, point, target, children.margin[rows])
        yield from self._ascents(places, lambda some: (point[some], target[some]), stopped)
        while len(again := self._turns(stopped)):
            yield from self._ascents(again, partial(self._near, again), stopped)

    def _ended(self, stopped: Sequence[bool]) -> Tensor:
        return torch.tensor(stopped, device=self.waiting.device)

    def _turns(self, stopped: Sequence[bool]) -> Tensor:
        """The next generation: each open image as often as it may climb, at most `MOST` times. (R,)."""
        steps = self.job.settings.attack.search_steps + 1
        none = self._ended(stopped) | self.margin[:, 0].isinf()  # nothing to start near
        turns = torch.where(none, 0, self.waiting // steps).clamp(max=MOST)
        self.waiting -= turns * steps
        return torch.arange(len(turns), device=turns.device).repeat_interleave(turns)

    def _ascents(self, image: Tensor, starts: Starts, stopped: Sequence[bool]) -> Iterator[Broken]:
        """Ascents of these images, (R,), as many at once as the device takes, and what they break.

        Out of memory, the rest is left out: proofs need it more.
        """
        job, device = self.job, image.device
        most = affordable(job.network, device, 1, default_batch(device))
        most = fitting(self.images.layout.floats, device, self.point.dtype, most)
        for some in torch.split(torch.arange(len(image), device=device), most):
            places = [place for place in torch.unique(image[some]).tolist() if not stopped[place]]
            number = [int(self.images.number[place]) for place in places]
            late = job.limit(number)
            if not places or late():
                return
            with job.ledger.share(number):
                # On a GPU a look at the clock in every step would make it wait.
                inside = late if device.type == "cpu" else never
                try:
                    point, target = starts(some)
                    found = self._climb(image[some], point, target, inside)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    release()
                    return
                broken = confirmed(job, self.images, image[some], *found, stopped)
                self._keep(image[some], found[0], target, found[1])
            yield broken

    def _near(self, images: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
        """Points near known ones, the worst most often, and their targets. images: (R,); some: which rows of them."""
        image = images[some]
        known = self.margin[image].isfinite().sum(1)
        chosen = (self._draw(image) ** 1.5 * known).long()
        other = (self._draw(image) * known).long()
        x, mate = self.point[image, chosen], self.point[image, other]
        low, high = self.images.inner[0][image], self.images.inner[1][image]
        moved = torch.where(self._draw(x) < self._rows(self._between(image, *SHARES), x), self._end(low, high), x)
        mixed = torch.where(self._draw(x) < self._rows(self._draw(image), x), x, mate)
        return torch.where(self._rows(self._draw(image), x) < 0.5, moved, mixed), self.target[image, chosen]

    def _end(self, low: Tensor, high: Tensor) -> Tensor:
        """A corner of each box."""
        return torch.where(self._draw(low) < 0.5, low, high)

    def _climb(self, image: Tensor, start: Tensor, target: Tensor, late: Late) -> tuple[Tensor, Tensor]:
        """Ascents from these points, (R, *shape): where they end, and the margins there by the model itself."""
        low, high, y = self.images.inner[0][image], self.images.inner[1][image], self.images.y[image]
        ascents = wide.Wide(
            self.job.network,
            start,
            low,
            high,
            (high - low) / 2,
            first=self._between(image, *FIRST_STEPS),
            width=self._between(image, *wide.WIDTHS),
            steps=self.job.settings.attack.search_steps,
        )
        point = ascents.to_the_end(lambda logits: target_margin(logits, y, target), late)
        return point, -torch.nan_to_num(worst_margin(self.job.logits(point), y), nan=-torch.inf)

    def _keep(self, image: Tensor, point: Tensor, target: Tensor, margin: Tensor) -> None:
        """Let these points take the places of better ones. All (R, ...); image: in any order, more than once."""
        kept = self.margin.shape[1]
        places = torch.unique(image)
        old = places.repeat_interleave(kept)
        image = torch.cat([old, image])
        point = torch.cat([self.point[places].flatten(0, 1), point])
        target = torch.cat([self.target[places].flatten(), target])
        margin = torch.cat([self.margin[places].flatten(), margin.to(self.margin.dtype)])
        order = margin.argsort(stable=True)
        order = order[image[order].argsort(stable=True)]  # by image, and within it by margin
        same = torch.zeros_like(order, dtype=torch.bool)
        same[1:] = (image[order][1:] == image[order][:-1]) & (margin[order].diff() < APART)
        order = order[~same]
        first = torch.searchsorted(image[order].contiguous(), image[order].contiguous())
        rank = torch.arange(len(order), device=order.device) - first
        order, rank = order[rank < kept], rank[rank < kept]
        self.margin[places] = torch.inf
        where = image[order], rank
        self.point[where], self.target[where], self.margin[where] = point[order], target[order], margin[order]

    def _draw(self, like: Tensor) -> Tensor:
        """Uniform in [0, 1), of this shape."""
        return torch.rand(like.shape, device=like.device, generator=self.generator)

    def _between(self, image: Tensor, low: float, high: float) -> Tensor:
        """Between both ends, (R,), each order of magnitude as likely."""
        return torch.exp(math.log(low) + math.log(high / low) * self._draw(image)).to(self.point.dtype)

    @staticmethod
    def _rows(values: Tensor, like: Tensor) -> Tensor:
        """(R,) as (R, 1, ...), to go with points."""
        return values.reshape(-1, *[1] * (like.ndim - 1))
