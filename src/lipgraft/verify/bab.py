"""Branch and bound with multipliers over one pool of subproblems of all images and target classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lipgraft.bounds.numerics import proved
from lipgraft.verify.capture import Replayed
from lipgraft.verify.counterexample import replay, short_attack
from lipgraft.verify.job import Job
from lipgraft.verify.leaves import solve_leaf
from lipgraft.verify.ledger import Decided
from lipgraft.verify.memory import explain, fitting, release
from lipgraft.verify.opened import Opened
from lipgraft.verify.pool import Pool
from lipgraft.verify.round import Children, Round
from lipgraft.verify.subproblems import Subproblems

SPLITS = 16  # room for splits in the beginning; doubled when a subproblem needs more
SMALLEST = 32  # parents in the smallest captured batch; the next ones are four times as large

Watch = Callable[[int], None]
"""Called after every round with the number of subproblems bounded in it."""


class BranchAndBound:
    """Rounds over the pool until every image is decided.

    An image is verified when none of its subproblems is open, so a subproblem may leave the pool only because it is
    proved or because its image has ended.
    """

    def __init__(self, job: Job, opened: Opened, watch: Watch | None = None) -> None:
        self.job, self.roots, self.floor, self.watch = job, opened.roots, opened.floor.clone(), watch
        self.number = self.roots.number.tolist()
        self.stopped = [False] * len(self.number)
        self.done: list[Decided] = []
        layout = self.roots.layout
        first = opened.sub.widened(self.roots.open.shape[1], SPLITS, layout.size)
        leaf = ~(self.roots.open[first.image] < layout.size).any(1)
        self.first_leaves = first.at(leaf)
        self.pool = Pool(first.at(~leaf), layout.size, int(job.settings.pool_gigabytes * 2**30))
        self.parents = fitting(layout, job.x.device, job.x.dtype, job.settings.batch) // 2
        self.round = Round(self.roots, job.settings)
        self.step = Replayed(self.round, job.x.device, job.settings.capture)
        self.rounds = 0
        for number in self.number:
            job.ledger.method[number] = "bab"

    def run(self) -> Iterator[Decided]:
        """Verdicts as images end."""
        with torch.no_grad():
            self._solve(self.first_leaves)
            self._finish()
        yield from self._drain()
        while not all(self.stopped):
            with torch.no_grad():
                self._stop_late()
                self._round()
                self._finish()
            yield from self._drain()

    def _drain(self) -> list[Decided]:
        done, self.done = self.done, []
        return done

    # --- ends of images

    def _stop(self, place: int, verdict: Decided) -> None:
        """End an image and forget its subproblems."""
        self.stopped[place] = True
        self.done.append(verdict)
        gone = torch.zeros(len(self.number), dtype=torch.bool, device=self.floor.device)
        gone[place] = True
        self.pool.drop(gone)

    def _give_up(self, place: int, reason: str) -> None:
        """End an image without a proof; the worst bound among its open subproblems is what is known of its margin."""
        mine = self.pool.used & (self.pool.slots.image == place)
        worst = float(torch.where(mine, self.pool.slots.bound, torch.inf).amin()) if len(mine) else torch.inf
        if reason != "memory" and worst < torch.inf:
            self.job.ledger.margin[self.number[place]] = min(worst, float(self.floor[place]))
        self._stop(place, self.job.ledger.verdict(self.number[place], "unknown", reason=reason))

    def _stop_late(self) -> None:
        """Images that have used up their own time or subproblems, or all of them when the whole run's time is over."""
        ledger, settings = self.job.ledger, self.job.settings
        over, most = self.job.late(), settings.max_subproblems
        for place, number in enumerate(self.number):
            if self.stopped[place]:
                continue
            if over or ledger.seconds[number] > settings.timeout:
                self._give_up(place, "timeout")
            elif most is not None and ledger.subproblems[number] >= most:
                self._give_up(place, "subproblems")

    def _finish(self) -> None:
        """Images without open subproblems are verified: every one of theirs was proved."""
        counts = self._open_counts().tolist()
        floors = self.floor.tolist()
        for place, number in enumerate(self.number):
            if not self.stopped[place] and counts[place] == 0:
                self._stop(place, self.job.ledger.verdict(number, "verified", margin=floors[place]))

    def _open_counts(self) -> Tensor:
        return torch.bincount(self.pool.slots.image[self.pool.used], minlength=len(self.number))

    def _alive(self) -> Tensor:
        return ~torch.tensor(self.stopped, device=self.floor.device)

    # --- rounds

    def _round(self) -> None:
        """Take the worst subproblems, split each, and deal with the halves."""
        slots = self.pool.select(self.parents)
        if len(slots) == 0:
            return
        ledger = self.job.ledger
        start = ledger.now()
        if int(self.pool.slots.depth[slots].max()) + 1 > self.pool.splits:
            self.pool.deepen(2 * self.pool.splits)
        parents = self.pool.take(slots)
        counts = torch.bincount(parents.image, minlength=len(self.number)).tolist()
        children, reason = None, ""
        try:
            children = self._children(parents)
            now = ledger.now()
        except RuntimeError as error:
            now, reason = ledger.now(), explain(error)
        for number, count in zip(self.number, counts, strict=True):
            ledger.seconds[number] += (now - start) * count / len(parents)
        if children is None:
            self._retry(parents, reason)
            return
        for number, count in zip(self.number, counts, strict=True):
            ledger.subproblems[number] += 2 * count
        try:
            self._digest(children)
        except RuntimeError as error:
            reason = explain(error)
            release()
            self._fail(parents, reason)  # some of the halves may be lost
        self.rounds += 1
        if self.watch is not None:
            self.watch(2 * len(parents))

    def _children(self, parents: Subproblems) -> Children:
        """Both halves of every parent. On a GPU the batch is filled up to one of a few sizes, which are captured."""
        count = size = len(parents)
        if self.step.enabled:
            size = SMALLEST
            while size < count:
                size *= 4
            size = max(count, min(size, self.parents))
        out = self.step(parents.filled_up(size) if size > count else parents)
        if size == count:
            return out
        real = torch.arange(count, device=out.leaf.device)
        real = torch.cat([real, real + size])
        return Children(out.sub.at(real), out.leaf[real], out.point[real], out.margin[real])

    def _retry(self, parents: Subproblems, reason: str) -> None:
        """Try again without graphs, then with smaller batches; at last the images of this batch end without a proof."""
        captured = self.step.give_up()
        release()
        if captured or (reason == "memory" and len(parents) > 1):
            self.parents = self.parents if captured else max(1, len(parents) // 2)
            self.pool.push(parents)
        else:
            self._fail(parents, reason)

    def _fail(self, parents: Subproblems, reason: str) -> None:
        for place in sorted(set(parents.image.tolist())):
            if not self.stopped[place]:
                self._stop(place, self.job.ledger.failed(self.number[place], reason))

    def _digest(self, children: Children) -> None:
        """Drop what is proved, end what is broken, solve leaves, and put the rest back."""
        sub, good = children.sub, proved(children.sub.bound)
        self.floor = self.floor.scatter_reduce(0, sub.image, torch.where(good, sub.bound, torch.inf), "amin")
        self._confirm(sub.image, children.point, children.margin)
        every = self.job.settings.search_every
        if every and self.rounds % every == 0:
            self._search(children)
        left = ~good & self._alive()[sub.image]
        self._make_room(sub.image[left])
        left &= self._alive()[sub.image]
        self.pool.push(sub.at(left & ~children.leaf))
        self._solve(sub.at(left & children.leaf))

    def _make_room(self, image: Tensor) -> None:
        """End the images with the most subproblems until the pool can take those of these images, (B,), too."""
        waiting = torch.bincount(image, minlength=len(self.number))
        while int((waiting * self._alive()).sum()) + len(self.pool) > self.pool.capacity():
            self._give_up(int((self._open_counts() + waiting * self._alive()).argmax()), "memory")

    # --- counterexamples and leaves

    def _replay(self, place: int, point: Tensor) -> bool:
        """Whether the model misclassifies the point; then the image ends."""
        roots = self.roots
        seen = replay(self.job.model, point, int(roots.y[place]), roots.low[place], roots.high[place])
        if seen is None:
            return False
        number = self.number[place]
        verdict = self.job.ledger.verdict(number, "falsified", counterexample=seen[0], margin=seen[1])
        self._stop(place, verdict)
        return True

    def _confirm(self, image: Tensor, point: Tensor, margin: Tensor) -> None:
        """Show the model each image's worst point, if its margin is negative. image, margin: (B,)."""
        rows = worst_rows(image, margin, len(self.number))
        for row in rows[margin[rows] < 0].tolist():
            if not self.stopped[int(image[row])]:
                self._replay(int(image[row]), point[row])

    def _search(self, children: Children) -> None:
        """A short attack from each image's worst point."""
        rows = worst_rows(children.sub.image, children.margin, len(self.number))
        rows = rows[self._alive()[children.sub.image[rows]]]
        if len(rows) == 0:
            return
        image, roots, model = children.sub.image[rows], self.roots, self.job.model
        low, high, y = roots.low[image], roots.high[image], roots.y[image]
        steps = self.job.settings.search_steps
        point = short_attack(model, children.point[rows], y, children.sub.target[rows], low, high, steps)
        wrong = model(point).argmax(1) != y
        self._confirm(image, point, torch.where(wrong, -1.0, 1.0))

    def _solve(self, leaves: Subproblems) -> None:
        """Fully split and not proved: multipliers are optimised for longer; what is left is decided exactly.

        Without a proof the linear program's solution is a counterexample, or a rounding error keeps the image open.
        """
        leaves = leaves.at(self._alive()[leaves.image])
        if len(leaves) == 0:
            return
        bound = self.round.leaf_bounds(leaves)
        good = proved(bound)
        self.floor = self.floor.scatter_reduce(0, leaves.image, torch.where(good, bound, torch.inf), "amin")
        leaves = leaves.at(~good)
        for row, place in enumerate(leaves.image.tolist()):
            if self.stopped[place]:
                continue
            leaf = solve_leaf(self.roots, leaves, row, self.job.settings.lp_size)
            exact = torch.tensor(-torch.inf if leaf is None else leaf.bound, dtype=torch.float64)
            if bool(proved(exact)):
                self.floor[place] = torch.minimum(self.floor[place], exact.to(self.floor))
            elif leaf is None or not self._replay(place, leaf.point):
                self._give_up(place, "gap")


def worst_rows(image: Tensor, margin: Tensor, images: int) -> Tensor:
    """For each image that is present, the row with its smallest margin. image, margin: (B,) -> (at most `images`,)."""
    least = torch.full((images,), torch.inf, dtype=margin.dtype, device=margin.device)
    least = least.scatter_reduce(0, image, margin, "amin")
    rows = torch.nonzero(margin == least[image]).flatten()
    first = torch.full((images,), len(image), dtype=torch.int64, device=image.device)
    first = first.scatter_reduce(0, image[rows], rows, "amin")
    return first[first < len(image)]
