"""When planes above neurons are fitted, and to which margins. See `bounds.planes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from lipgraft.verification.branch_and_bound.branching import costly
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.planes import FEW, Group, UpperPlanes, fit, fits
from lipgraft.verification.branch_and_bound.subproblems import Pool, Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.verdict import Ledger

AGAIN, LATER = 5, 2.0  # times as many subproblems as before, and an image's planes are fitted anew; after that
FITS = 16  # of an image's planes, at most
MANY = 64  # open subproblems of an image whose planes are fitted anew, at least
MARGINS = 6  # open margins of an image that gets planes, at most
FITTED = 32  # subproblems of a margin that its planes are fitted to
SHARE = 0.25  # of the time that is left to images, for one fit of their planes at most
AT_ONCE = 48  # margins
WAITING = 4  # planes are fitted when one in so many open images waits for it
REST, LONG_REST = 8, 64  # rounds until then, unless all wait for it; more where there was no memory for all

Margins = dict[int, list[int]]
"""Images by their places in the search, the most promising first, with the classes of their open margins."""


class Lifting:
    """times: how often planes were fitted to each image of a search; next_round: none are fitted before it, or, if it
    is None, at all.
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
            if times < FITS and not stopped[place] and subproblems[numbers[place]] >= after * _growth(times)
        ]
        waits, live = self.next_round is None or rounds < self.next_round, len(stopped) - sum(stopped)
        if not hard or waits or len(hard) * WAITING < live:
            return {}
        # What is nearly proved with the planes that it has needs no others.
        counts = pool.counts(len(numbers)).tolist()
        hard = [place for place in hard if self.times[place] == 0 or counts[place] >= MANY]
        self.next_round = rounds + (REST if len(hard) < live else 0)
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
        groups, hard = self._with_room(images, pool, known, wanted, kept, batch)
        steps = self.job.settings.branch.plane_steps
        steps = steps if len(groups) <= FEW else steps // 2
        found: list[Group] = []
        for start in range(0, len(groups), AT_ONCE):
            some = groups[start : start + AT_ONCE]
            mine = ledger.now() + (end - ledger.now()) * len(some) / (len(groups) - start)
            sub = Subproblems.cat(hard[start : start + len(some)])
            found += fit(some, bounds, sub, images.lifted_bound, steps, partial(_after, ledger, mine))
        for place in {group.image for group in groups}:
            self.times[place] += 1
        if not found:
            return None, []
        better = {(group.image, group.target) for group in found}
        tried = {(group.image, group.target) for group in groups}
        kept += [group for pair, group in known.items() if pair in tried - better]
        planes = UpperPlanes.of([*kept, *found], bounds, images.proof, images.layout.network.output_shape[0])
        return planes, sorted({group.image for group in found})

    def _with_room(
        self,
        images: Images,
        pool: Pool,
        known: dict[tuple[int, int], Group],
        wanted: list[tuple[int, int]],
        kept: list[Group],
        batch: int,
    ) -> tuple[list[Group], list[Subproblems]]:
        """The planes of these margins, as they begin, until there is no memory for more; and the subproblems of each
        that they are to be fitted to.
        """
        bounds, held = images.bounds, images.bounds if images.proof is None else images.proof
        groups: list[Group] = []
        hard: list[Subproblems] = []
        for pair in wanted:
            hard.append(pool.spread(*pair, FITTED).unpacked())
            neurons = costly(images.lower_bound(hard[-1]), hard[-1])
            groups.append(Group.of(held, *pair, neurons, bounds.lower.dtype, known.get(pair)))
            if not fits([*kept, *groups], batch, bounds.lower.device):
                groups.pop()
                if self.next_round is not None:
                    self.next_round += LONG_REST
                break
        return groups, hard


def _growth(times: int) -> float:
    """How many times the subproblems before an image's first planes it has before its next ones."""
    return AGAIN * LATER ** (times - 1) if times else 1


def _after(ledger: Ledger, end: float) -> bool:
    return ledger.now() > end
