"""When planes above neurons are fitted, and to which margins. See `bounds.planes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.planes import FEW, Group, UpperPlanes, fit, fits
from lipgraft.verification.branch_and_bound.subproblems import Pool, Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.verdict import Ledger

FITS = 5  # of an image's planes, each after ten times as many subproblems
MARGINS = 6  # open margins of an image that gets planes, at most
FITTED = 32  # subproblems of a margin that its planes are fitted to
SHARE = 0.25  # of the time that is left to images, for one fit of their planes at most
AT_ONCE = 48  # margins
WAITING = 4  # planes are fitted when one in so many open images waits for it
REST, LONG_REST = 8, 64  # rounds until then; more where there was no memory for all

Margins = dict[int, list[int]]
"""Images by their places in the search, the most promising first, with the classes of their open margins."""


class Lifting:
    """times: how often each image of a search has got planes; next_round: none are fitted before it, or, if it is None,
    at all.
    """

    def __init__(self, job: Job, images: int) -> None:
        self.job = job
        self.times = [0] * images
        self.next_round: int | None = 0

    def due(
        self, numbers: Sequence[int], stopped: Sequence[bool], rounds: int, pool: Pool, cost: Callable[[], Tensor]
    ) -> Margins:
        """The open margins of images that prove hard, but for images with many of them.

        numbers: the images of the search; stopped: which of them have ended; rounds: so many are done; cost: (I,), how
        much work each image needs.
        """
        after, subproblems = self.job.settings.branch.neuron_after, self.job.ledger.subproblems
        hard = [
            place
            for place, times in enumerate(self.times)
            if times < FITS and not stopped[place] and subproblems[numbers[place]] >= after * 10**times
        ]
        waits = self.next_round is None or rounds < self.next_round
        if not hard or waits or len(hard) * WAITING < len(stopped) - sum(stopped):
            return {}
        self.next_round = rounds + REST
        needed = cost().tolist()
        found: Margins = {place: [] for place in sorted(hard, key=lambda place: needed[place])}
        for image, target in pool.margins():
            if image in found:
                found[image].append(target)
        return {image: targets for image, targets in found.items() if 0 < len(targets) <= MARGINS}

    def fitted(
        self, images: Images, pool: Pool, margins: Margins, stopped: Sequence[bool], batch: int
    ) -> tuple[UpperPlanes | None, list[int]]:
        """All planes of these images from now on, and which images got some. None: no margin did.

        margins: in the order in which there is room for them; batch: so many subproblems are bounded at once.
        """
        ledger, bounds = self.job.ledger, images.bounds
        end = ledger.now() + SHARE * self.job.left(images.number[list(margins)].tolist())
        members = [] if images.planes is None else images.planes.members
        known = {(group.image, group.target): group for group in members if not stopped[group.image]}
        wanted = [(image, target) for image, targets in margins.items() for target in targets]
        kept = [group for pair, group in known.items() if pair not in wanted]
        groups = self._with_room(images, known, wanted, kept, batch)
        steps = self.job.settings.branch.plane_steps
        steps = steps if len(groups) <= FEW else steps // 2
        found: list[Group] = []
        for start in range(0, len(groups), AT_ONCE):
            some = groups[start : start + AT_ONCE]
            mine = ledger.now() + (end - ledger.now()) * len(some) / (len(groups) - start)
            sub = Subproblems.cat([pool.spread(g.image, g.target, FITTED) for g in some]).unpacked()
            found += fit(some, bounds, sub, images.lifted_bound, steps, partial(_after, ledger, mine))
        if not found:
            return None, []
        planes = UpperPlanes.of([*kept, *found], bounds, images.proof, images.layout.network.output_shape[0])
        lifted = sorted({group.image for group in found})
        for place in lifted:
            self.times[place] += 1
        return planes, lifted

    def _with_room(
        self,
        images: Images,
        known: dict[tuple[int, int], Group],
        wanted: list[tuple[int, int]],
        kept: list[Group],
        batch: int,
    ) -> list[Group]:
        """The planes of these margins, as they are known or as they begin, until there is no memory for more."""
        bounds, held = images.bounds, images.bounds if images.proof is None else images.proof
        groups: list[Group] = []
        for pair in wanted:
            groups.append(known.get(pair) or Group.of(held, *pair, bounds.lower.dtype))
            if not fits([*kept, *groups], batch, bounds.lower.device):
                groups.pop()
                if self.next_round is not None:
                    self.next_round += LONG_REST
                break
        return groups


def _after(ledger: Ledger, end: float) -> bool:
    return ledger.now() > end
