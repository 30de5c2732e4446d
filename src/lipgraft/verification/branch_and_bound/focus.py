"""Whose turn it is: the few hard images that a search works on at a time.

What helps hard images most, planes above their neurons, takes memory and time for every margin. So not all images can
have them at once, and branching without them is mostly lost on hard images. Therefore these take turns, as many at a
time as can have planes. On a CPU, where each subproblem costs, turns begin once all images have been tried. A turn
ends when the image is decided or has twice its subproblems. Everyone gets one turn, and then those that need least, as
far as their last turn tells: what stands still waits for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lipgraft.verification.branch_and_bound.effort import again, turn_left
from lipgraft.verification.branch_and_bound.pool import Pool
from lipgraft.verification.job import Job

TRIAL = 450  # subproblems that every image gets on a GPU: enough to see what better bounds of hidden neurons do
TURN = 10  # times the subproblems after which an image counts as hard, and its first turn ends
LUMP = 2  # on a GPU images come when one in so many places is free: planes for many take hardly longer than for one
LOOK = 8  # rounds between two looks at how many margins are still open
MOST = 4.0  # times the work of the most promising image that another one counts for, at most, while both are worked on
LAST = 2.0**30  # times its work that an image counts for whose turn it is not


class Focus:
    """ends: the images whose turn it is, by their places in the search, with the subproblems at which it ends.

    began: the subproblems and the worst bound of each image when its last turn began; left: how many more subproblems
    each image needs, about, as it went in its last turn; waited: how many images were waiting for one. room: the open
    margins of all images whose turn it is, at most, but for a single image. after: the subproblems from which on an
    image counts as hard. exclusive: whether the others get nothing at all. A GPU takes as long for a full round as for
    any other, so there they get the places that are left.
    """

    def __init__(self, job: Job, numbers: Sequence[int], room: int) -> None:
        """numbers: the images of the search, by their places in the job."""
        self.ledger, self.after = job.ledger, job.settings.branch.neuron_after
        self.exclusive = job.x.device.type == "cpu"
        self.numbers, self.room = numbers, room
        self.ends: dict[int, int] = {}
        self.began: dict[int, tuple[int, float]] = {}
        self.left: dict[int, float] = {}
        self.next_look = self.waited = 0

    @property
    def taken(self) -> list[int]:
        """The subproblems of each image so far."""
        return [self.ledger.subproblems[number] for number in self.numbers]

    def update(self, rounds: int, stopped: Sequence[bool], pool: Pool, cost: Callable[[], Tensor]) -> bool:
        """Turns end, and others begin: of images that have had none, and then of the most promising. Whether some did.

        rounds: so many are done; stopped: which images have ended; cost: (I,), how much work each image needs.
        """
        taken, before = self.taken, set(self.ends)
        over = [place for place, end in self.ends.items() if stopped[place] or taken[place] >= end]
        worst = pool.worst_bounds(len(taken)).tolist() if over else []
        for place in over:
            del self.ends[place]
            self.left[place] = turn_left(self.began[place], (taken[place], worst[place]))
        hard = [place for place, count in enumerate(taken) if count >= self.after and not stopped[place]]
        waiting = [place for place in hard if place not in self.ends]
        news = over or len(waiting) > self.waited or rounds >= self.next_look
        self.waited = len(waiting)
        if not waiting or not news or (self.exclusive and self._on_trial(stopped)):
            return False
        self.next_look = rounds + LOOK
        wide = pool.margin_counts(len(taken))
        free = self.room - sum(wide[place] for place in self.ends)
        if self.ends and not self.exclusive and free * LUMP < self.room:
            return False
        needed, worst = cost().tolist(), pool.worst_bounds(len(taken)).tolist()
        for place in sorted(waiting, key=lambda place: (place in self.left, self.left.get(place, needed[place]))):
            if self.ends and wide[place] > free:
                break  # or images with few margins would always come before it
            self.began[place] = taken[place], worst[place]
            self.ends[place] = max(TURN * self.after, again(self.after, taken[place]))
            free -= wide[place]
        return not before.issuperset(self.ends)

    def others(self, stopped: Sequence[bool]) -> list[bool]:
        """The images whose turn it is not, and those that have ended."""
        return [end or place not in self.ends for place, end in enumerate(stopped)]

    def resting(self, stopped: Sequence[bool]) -> list[bool]:
        """The images whose hidden neurons can wait: of the others, on a GPU those whose trial is over."""
        if self.exclusive:
            return self.others(stopped)
        at_work = self._at_work(stopped)
        return [place not in at_work for place in range(len(stopped))]

    def shares(self, cost: Tensor, stopped: Sequence[bool], pool: Pool, count: int) -> Tensor:
        """What each image counts for when `count` subproblems are chosen, (I,); infinite: it gets nothing."""
        at_work = self._at_work(stopped)
        if self.exclusive:
            at_work -= self._left_out(at_work, pool, count)
        rest = torch.tensor([place not in at_work for place in range(len(stopped))], device=cost.device)
        return torch.where(rest, torch.inf if self.exclusive else LAST * cost, cost.clamp(max=MOST))

    def _at_work(self, stopped: Sequence[bool]) -> set[int]:
        """The images whose turn it is, and those on trial."""
        return self._on_trial(stopped) | self.ends.keys()

    def _on_trial(self, stopped: Sequence[bool]) -> set[int]:
        """The images that nobody can tell of yet whether they are hard."""
        trial = self.after if self.exclusive else max(TRIAL, self.after)
        return {place for place, taken in enumerate(self.taken) if taken < trial and not stopped[place]}

    def _left_out(self, at_work: set[int], pool: Pool, count: int) -> set[int]:
        """Of the images on trial, those that look worst where fewer are enough to fill a round."""
        worst, open_ = pool.worst_bounds(len(self.numbers)).tolist(), pool.counts(len(self.numbers)).tolist()
        out = set()
        for place in sorted(at_work - set(self.ends), key=lambda place: -worst[place]):
            if count <= 0:
                out.add(place)
            count -= open_[place]
        return out
