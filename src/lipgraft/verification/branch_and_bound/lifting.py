"""When planes above neurons are fitted, and to which margins. See `bounds.planes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from lipgraft.verification.branch_and_bound.branching import costly
from lipgraft.verification.branch_and_bound.effort import again
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.planes import FEW, Group, UpperPlanes, fit, fits, most_margins
from lipgraft.verification.branch_and_bound.pool import Pool
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.verdict import Ledger

MANY = 64  # open subproblems of an image whose planes are fitted anew, at least
MARGINS = 6  # open margins of an image that gets planes, at most
FITTED = 32  # subproblems of a margin that its planes are fitted to; half as many, by half the steps, on a CPU
SHARE = 0.25  # of the time that is left to images, for one fit of their planes at most
AT_ONCE = 48  # margins
WAITING = 4  # planes are fitted when one in so many open images waits for it
REST, LONG_REST = 8, 64  # rounds until then, unless all wait for it; more where there was no memory for all

Margins = dict[int, list[int]]
"""Images by their places in the search, the most promising first, with the classes of their open margins."""


class Lifting:
    """due_at: the subproblems at which planes are fitted to each image of a search, anew where it has some; 0 where it
    has none. next_round: none are fitted before it, or, if it is None, at all. fresh: whether there are images whose
    turn has just begun, which do not wait for it. room: for the planes of so many margins.
    """

    def __init__(self, job: Job, images: Images) -> None:
        self.job = job
        self.due_at = [0] * len(images)
        drafts = job.ledger.drafts  # a certificate may have no room for planes
        possible = job.settings.branch.plane_steps > 0 and (drafts is None or drafts.takes_planes)
        self.next_round: int | None = 0 if possible and not images.bounds.errors else None
        self.fresh = False
        self.room = most_margins(job.x.device)
        self.slow = job.x.device.type == "cpu"

    def due(
        self, numbers: Sequence[int], others: Sequence[bool], rounds: int, pool: Pool, cost: Callable[[], Tensor]
    ) -> Margins:
        """The open margins of images that prove hard, but for images with many of them.

        numbers: the images of the search; others: those whose turn it is not; rounds: so many are done; cost: (I,), how
        much work each image needs.
        """
        subproblems = self.job.ledger.subproblems
        hard = [
            place
            for place, due_at in enumerate(self.due_at)
            if not others[place] and subproblems[numbers[place]] >= due_at
        ]
        live = len(others) - sum(others)
        if not hard or self.next_round is None:
            return {}
        if not self.fresh and (rounds < self.next_round or len(hard) * WAITING < live):
            return {}
        self.fresh = False
        # What is nearly proved with the planes that it has needs no others.
        counts = pool.counts(len(numbers)).tolist()
        hard = [place for place in hard if self.due_at[place] == 0 or counts[place] >= MANY]
        self.next_round = rounds + (REST if len(hard) < live else 0)
        needed = cost().tolist()
        found: Margins = {place: [] for place in sorted(hard, key=lambda place: needed[place])}
        for image, target in pool.margins():
            if image in found:
                found[image].append(target)
        return {image: targets for image, targets in found.items() if 0 < len(targets) <= MARGINS}

    def fitted(
        self, images: Images, pool: Pool, margins: Margins, others: Sequence[bool], batch: int
    ) -> tuple[UpperPlanes | None, list[int]]:
        """All planes of these images from now on, and which images got some. None: no margin did.

        margins: in the order in which there is room for them; others: images whose turn it is not, which lose theirs;
        batch: so many subproblems are bounded at once.
        """
        ledger, bounds = self.job.ledger, images.bounds
        end = ledger.now() + SHARE * self.job.left(images.number[list(margins)].tolist())
        members = [] if images.planes is None else images.planes.members
        open_ = set(pool.margins())
        known = {(g.image, g.target): g for g in members if not others[g.image] and (g.image, g.target) in open_}
        wanted = [(image, target) for image, targets in margins.items() for target in targets]
        kept = [group for pair, group in known.items() if pair not in wanted]
        groups, hard = self._with_room(images, pool, known, wanted, kept, batch)
        steps = self.job.settings.branch.plane_steps
        steps = -(-steps // 2) if self.slow or len(groups) > FEW else steps
        found: list[Group] = []
        for start in range(0, len(groups), AT_ONCE):
            some = groups[start : start + AT_ONCE]
            mine = ledger.now() + (end - ledger.now()) * len(some) / (len(groups) - start)
            sub = Subproblems.cat(hard[start : start + len(some)])
            found += fit(some, bounds, sub, images.lifted_bound, steps, partial(_after, ledger, mine))
        after, subproblems = self.job.settings.branch.neuron_after, ledger.subproblems
        for place in {group.image for group in groups}:
            self.due_at[place] = again(after, subproblems[int(images.number[place])])
        if not found:
            return None, []
        better = {(group.image, group.target) for group in found}
        tried = {(group.image, group.target) for group in groups}
        kept += [group for pair, group in known.items() if pair in tried - better]
        for place in {group.image for group in members if others[group.image]}:
            self.due_at[place] = 0
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
            hard.append(pool.spread(*pair, FITTED // 2 if self.slow else FITTED).unpacked())
            neurons = costly(images.lower_bound(hard[-1]), hard[-1])
            groups.append(Group.of(held, *pair, neurons, bounds.lower.dtype, known.get(pair)))
            if not fits([*kept, *groups], batch, bounds.lower.device):
                groups.pop()
                self.room = max(1, len(kept) + len(groups))
                if self.next_round is not None:
                    self.next_round += LONG_REST
                break
        return groups, hard


def _after(ledger: Ledger, end: float) -> bool:
    return ledger.now() > end
