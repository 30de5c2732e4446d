"""Branch and bound with multipliers over one pool of subproblems of all images and target classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lipgraft.bounds.implied import Implied
from lipgraft.bounds.memory import Late, affordable, explain, fitting, release
from lipgraft.bounds.sound import proved
from lipgraft.bounds.splits import splittable
from lipgraft.verification.branch_and_bound.branching import Children, Step
from lipgraft.verification.branch_and_bound.capture import Replayed
from lipgraft.verification.branch_and_bound.counterexamples import Broken, confirmed
from lipgraft.verification.branch_and_bound.effort import work_left
from lipgraft.verification.branch_and_bound.focus import Focus
from lipgraft.verification.branch_and_bound.hidden import HiddenNeurons
from lipgraft.verification.branch_and_bound.hunt import Hunt
from lipgraft.verification.branch_and_bound.images import OpenImages
from lipgraft.verification.branch_and_bound.leaves import OutOfTimeError, exact_bound, solve_leaf
from lipgraft.verification.branch_and_bound.lifting import Lifting
from lipgraft.verification.branch_and_bound.pool import Pool, pool_limits
from lipgraft.verification.branch_and_bound.subproblems import Subproblems, counted
from lipgraft.verification.handover import Package, Relay, leaving
from lipgraft.verification.job import Job
from lipgraft.verification.verdict import Decided, Shares

SPLITS = 16  # room for splits in the beginning; doubled when a subproblem needs more
PASSES = 8  # through the network that a parent's two halves cost, gradients counted as one

Watch = Callable[[int], None]
"""Called after every round with the number of subproblems bounded in it."""


class BranchAndBound:
    """Rounds over the pool until every image is decided.

    An image is verified when none of its subproblems is open, so a subproblem may leave the pool only because it is
    proved or because its image has ended.
    """

    def __init__(
        self, job: Job, open_images: OpenImages, watch: Watch | None = None, relay: Relay | None = None
    ) -> None:
        """relay: who may ask for some of the images between two rounds."""
        self.relay = relay
        self.job, self.floor, self.watch = job, open_images.floor.clone(), watch
        held = open_images.images.bounds if open_images.images.proof is None else open_images.images.proof
        # A certificate has no room for what splits imply.
        implied = Implied.of(held, job.x.dtype) if job.ledger.drafts is None else None
        self.images = replace(open_images.images, implied=implied)
        self.number = self.images.number.tolist()
        self.stopped = [False] * len(self.number)
        self.alive = torch.ones_like(self.floor, dtype=torch.bool)
        self.done: list[Decided] = []
        layout, open_neurons = self.images.layout, self.images.bounds.open
        splits = max(SPLITS, open_images.sub.neuron.shape[1])
        first = open_images.sub.widened(self.images.alphas, splits, layout.size)
        lower, upper = (end.gather(1, open_neurons) for end in (self.images.bounds.lower, self.images.bounds.upper))
        leaf = ~splittable(layout, open_neurons, lower, upper).any(1)[first.image]
        self.first_leaves = first.at(leaf)
        self.pool = Pool(first.at(~leaf), layout.size, *pool_limits(job.x.device, job.settings.limits))
        fit = fitting(layout.floats, job.x.device, job.x.dtype, job.settings.branch.batch) // 2
        self.parents = affordable(job.network, job.x.device, PASSES, fit)
        self.step = Step(self.images, job.settings)
        self.replayed = Replayed(self.step, job.x.device, job.settings.branch.capture)
        self.hidden = HiddenNeurons(job)
        self.tightened = [0] * len(self.number)
        self.lifting = Lifting(job, self.images)
        self.focus = Focus(job, self.number, self.lifting.room)
        self.hunt = Hunt(job, self.images)
        self.first = self.pool.worst_bounds(len(self.number))
        self.taken, self.rounds = torch.zeros_like(self.first), 0
        for number in self.number:
            job.ledger.method[number] = "bab"

    def run(self) -> Iterator[Decided]:
        """Verdicts as images end."""
        with torch.no_grad():
            self._stop_late()
            self._solve(self.first_leaves, torch.arange(len(self.first_leaves), device=self.floor.device))
            self._finish()
        yield from self._drain()
        while not all(self.stopped):
            if self.relay is not None and self.relay.wanted:
                self.relay.answer(self._half())
            self.advance()
            yield from self._drain()

    @torch.no_grad()
    def advance(self) -> None:
        """One round, with what has to be done before and after it."""
        self._stop_late()
        self._take_turns()
        self._tighten()
        self._lift()
        self._round()
        self._finish()

    def _drain(self) -> list[Decided]:
        done, self.done = self.done, []
        return done

    # --- images that move to another search

    @classmethod
    def going_on(
        cls, job: Job, package: Package, watch: Watch | None = None, relay: Relay | None = None
    ) -> BranchAndBound:
        """The search for the images of a package, from where the giver's stood. job: about these images alone."""
        search = cls(job, package.open_images(job), watch, relay)
        search.first, search.taken = package.first.to(search.first), package.taken.to(search.taken)
        search.tightened = list(package.tightened)
        return search

    def _half(self) -> Package | None:
        """Every second of the open images, for another search, if there are two at least."""
        live = [place for place, stopped in enumerate(self.stopped) if not stopped]
        return self.give(live[1::2]) if len(live) > 1 else None

    def give(self, places: list[int]) -> Package:
        """These images, which are open, with all of their subproblems. This search forgets them."""
        images, packed = leaving(self.images, self.pool.leave(places), places)
        for place in places:
            self._leave(place)
        notes = {name: getattr(self, name)[places].cpu() for name in ("floor", "first", "taken")}
        tightened = [self.tightened[place] for place in places]
        return Package.of(self.job, images, packed, tightened=tightened, **notes)

    # --- ends of images

    def _stop(self, place: int, verdict: Decided) -> None:
        """End an image and forget its subproblems."""
        self._leave(place)
        self.done.append(verdict)
        self.pool.drop(place)

    def _leave(self, place: int) -> None:
        """Nobody asks for this image any more."""
        self.stopped[place] = True
        self.alive[place] = False

    def _give_up(self, place: int, reason: str) -> None:
        """End an image without a proof; the worst bound among its open subproblems is what is known of its margin."""
        worst = self.pool.worst(place)
        if reason != "memory" and worst < torch.inf:
            self.job.ledger.margin[self.number[place]] = min(worst, float(self.floor[place]))
        self._stop(place, self.job.ledger.verdict(self.number[place], "unknown", reason=reason))

    def _stop_late(self) -> None:
        """Images that have used up their own time or subproblems, or all of them when the whole run's time is over."""
        job, over, most = self.job, self.job.late(), self.job.settings.limits.max_subproblems
        for place, number in enumerate(self.number):
            if self.stopped[place]:
                continue
            if over or job.out_of_time(number):
                self._give_up(place, "timeout")
            elif most is not None and job.ledger.subproblems[number] >= most:
                self._give_up(place, "subproblems")

    def _finish(self) -> None:
        """Images without open subproblems, wherever they are kept, are verified: every one of theirs was proved."""
        counts = self.pool.counts(len(self.number)).tolist()
        ended = [place for place, count in enumerate(counts) if count == 0 and not self.stopped[place]]
        floors = self.floor.tolist() if ended else []
        for place in ended:
            self._stop(place, self.job.ledger.verdict(self.number[place], "verified", margin=floors[place]))

    # --- rounds

    def _cost(self) -> Tensor:
        """How much more work than so far each image needs, about: (I,)."""
        return work_left(self.pool.worst_bounds(len(self.number)), self.first, self.taken)

    def _take_turns(self) -> None:
        """Choose the images to work on."""
        self.focus.room = self.lifting.room
        if self.focus.update(self.rounds, self.stopped, self.pool, self._cost):
            self.lifting.fresh = True
            if self.step.start_over():
                self.replayed.forget()

    def _tighten(self) -> None:
        """Better bounds of hidden neurons for images that prove hard; splits that contradict them are proved."""
        resting = self.focus.resting(self.stopped)
        for hard, splits in self.hidden.due(self.number, resting, self.tightened, self._cost):
            self._tighten_some([place for place in hard if not self.stopped[place]], splits)

    def _tighten_some(self, hard: list[int], splits: int) -> None:
        """These images, each with so many splits for every bound of a hidden neuron."""
        for place in hard:
            self.tightened[place] += 1

        def tighten(late: Late) -> list[int]:
            some = torch.tensor(hard, device=self.floor.device)
            self.hidden.tighten(self.images, some, splits, late, self.stopped.count(False))
            self.pool.remove(self.images.contradictory)
            return hard

        self._improve(hard, tighten)

    def _lift(self) -> None:
        """Planes above neurons, for images that prove hard; fitted anew as their trees grow."""
        others = self.focus.others(self.stopped)
        margins = self.lifting.due(self.number, others, self.rounds, self.pool, self._cost)

        def lift(late: Late) -> list[int]:
            planes, lifted = self.lifting.fitted(self.images, self.pool, margins, others, 2 * self.parents)
            if planes is not None:
                self.images = self.step.images = replace(self.images, planes=planes)
                self.replayed.forget()
            return lifted

        if margins and not self._improve(list(margins), lift):
            self.lifting.next_round = None

    def _improve(self, places: list[int], work: Callable[[Late], list[int]]) -> bool:
        """Better bounds for the neurons of some images; work says for which it found any. Whether nothing failed.

        Without memory for it the bounds that there are stay; any other failure ends the images.
        """
        numbers = [self.number[place] for place in places]
        reason = ""
        with self.job.ledger.share(numbers):
            try:
                late = self.job.limit(numbers)
                self._bound_again(torch.tensor(work(late), device=self.floor.device), late)
            except RuntimeError as error:
                reason = explain(error)
        if reason == "memory":
            release()
        elif reason:
            for place in places:
                self._stop(place, self.job.ledger.failed(self.number[place], reason))
        return not reason

    def _bound_again(self, some: Tensor, late: Late) -> None:
        """The open subproblems of some images, (J,), with what the better bounds of their neurons make of them.

        Without it an image would be judged, and given time, by bounds from before.
        """
        for part in torch.split(self.pool.of(some), 2 * self.parents):
            if late() or len(part) == 0:
                return
            # They stay in the pool until all is done: an error on the way must not lose one.
            sub, good = self._settled(self.step.bounded(self.pool.slots.at(part).unpacked()))
            self.pool.update(part, sub, ~good)
            for number, count in self._numbers(sub):
                self.job.ledger.subproblems[number] += count

    def _round(self) -> None:
        """Take the worst subproblems, split each, and deal with the halves."""
        self.pool.refill()
        wanted = self.focus.shares(self._cost(), self.stopped, self.pool, self.parents)
        slots = self.pool.select(self.parents, wanted)
        if len(slots) == 0:
            return
        counts = counted(self.pool.slots.image[slots].long(), len(self.number))
        # Both in one look at the device.
        *numbers, deepest = torch.cat([counts, self.pool.slots.depth[slots].amax()[None]]).tolist()
        if deepest + 1 > self.pool.splits:
            self.pool.deepen(2 * self.pool.splits)
        parents = self.pool.take(slots)
        shares = self._shares(numbers)
        with self.job.ledger.charged(shares):
            children, reason = None, ""
            try:
                children = self.replayed.filled_up(parents, self.parents)
            except RuntimeError as error:
                reason = explain(error)
        if children is None:
            self._retry(parents, reason)
            return
        for number, count in shares:
            self.job.ledger.subproblems[number] += 2 * count
        self.taken += 2 * counts
        try:
            self._digest(shares, children)
        except RuntimeError as error:
            reason = explain(error)
            release()
            self._fail(parents, reason)  # some of the halves may be lost
        self.rounds += 1
        if self.watch is not None:
            self.watch(2 * len(parents))

    def _numbers(self, sub: Subproblems) -> Shares:
        """The images of some subproblems, and how many each has."""
        return self._shares(counted(sub.image, len(self.number)).tolist())

    def _shares(self, counts: list[int]) -> Shares:
        return [(number, count) for number, count in zip(self.number, counts, strict=True) if count]

    def _retry(self, parents: Subproblems, reason: str) -> None:
        """Try again without graphs, then with smaller batches; at last the images of this batch end without a proof."""
        captured = self.replayed.give_up()
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

    def _digest(self, shares: Shares, children: Children) -> None:
        """Drop what is proved, end what is broken, put the rest back, and solve leaves. shares: of their parents."""
        with self.job.ledger.charged(shares):
            sub, good = self._settled(children.sub)
            self._break(confirmed(self.job, self.images, sub.image, children.point, children.margin, self.stopped))
        for broken in self.hunt.after(self.rounds, children, self.stopped):
            self._break(broken)
        with self.job.ledger.charged(shares):
            left = ~good & self.alive[sub.image]
            rows = torch.nonzero(left & ~children.leaf).flatten()
            if not self.pool.fits(len(rows)):
                self._make_room(sub.image[rows])
                rows = rows[self.alive[sub.image[rows]]]
            self.pool.push(sub.at(rows))
        self._solve(sub, torch.nonzero(left & children.leaf).flatten())
        if self.step.take_pains(children.risen):
            self.replayed.forget()

    def _settled(self, sub: Subproblems) -> tuple[Subproblems, Tensor]:
        """The subproblems with the bounds that may be called proved, and which of them are above zero: (B,).

        The worst of these is the floor under its image's margin. What the search took for proved and is not stays open,
        with a bound of zero at most: its halves may be proved.
        """
        good = proved(sub.bound)
        if self.images.proof is not None:
            rows, batch = torch.nonzero(good).flatten(), self.job.settings.branch.batch
            bound = sub.bound.index_copy(0, rows, self.images.proved_bounds(sub.at(rows), batch))
            good = proved(bound)
            if self.job.ledger.drafts is not None:
                self.job.ledger.drafts.add(self.images, sub.at(good & self.alive[sub.image]))
            sub = replace(sub, bound=torch.where(good, bound, bound.clamp(max=0)))
        self.floor = self.floor.scatter_reduce(0, sub.image, torch.where(good, sub.bound, torch.inf), "amin")
        return sub, good

    def _make_room(self, image: Tensor) -> None:
        """End the images with the most subproblems until those of these images, (B,), fit on the device or the host."""
        waiting = counted(image, len(self.number))
        while not self.pool.fits(int((waiting * self.alive).sum())):
            open_ = self.pool.counts(len(self.number)) + waiting
            self._give_up(int((open_ * self.alive).argmax()), "memory")

    # --- counterexamples and leaves

    def _break(self, broken: Broken) -> None:
        """End images by their counterexamples."""
        for place, (point, margin) in broken.items():
            number = self.number[place]
            self._stop(place, self.job.ledger.verdict(number, "falsified", counterexample=point, margin=margin))

    def _solve(self, sub: Subproblems, rows: Tensor) -> None:
        """Rows of subproblems, (L,), that are fully split and not proved: their multipliers are optimised for longer;
        what is left is decided exactly.

        Without a proof the linear program's solution is a counterexample, or a rounding error keeps the image open.
        """
        rows = rows[self.alive[sub.image[rows]]] if len(rows) else rows
        if len(rows) == 0:
            return
        leaves = sub.at(rows)
        shares = self._numbers(leaves)
        with self.job.ledger.charged(shares):
            late = self.job.limit([number for number, _ in shares])
            leaves, good = self._settled(self.step.leaf_bounds(leaves, late))
        leaves = leaves.at(~good)
        for row, place in enumerate(leaves.image.tolist()):
            if not self.stopped[place]:
                with self.job.ledger.share([self.number[place]]):
                    self._solve_exactly(leaves, row, place)

    def _solve_exactly(self, leaves: Subproblems, row: int, place: int) -> None:
        """The linear program of one leaf, within the time of its image."""
        end = self.job.ledger.now() + self.job.left([self.number[place]])
        try:
            size = self.job.settings.branch.lp_size
            leaf = solve_leaf(self.images, leaves, row, size, lambda: end - self.job.ledger.now())
        except OutOfTimeError:
            self._give_up(place, "timeout")
            return
        one, batch = leaves.at(slice(row, row + 1)), self.job.settings.branch.batch
        exact = exact_bound(self.images, one, leaf, batch, self.job.ledger.drafts)
        if bool(proved(torch.tensor(exact, dtype=torch.float64))):
            self.floor[place] = min(float(self.floor[place]), exact)
            return
        seen = None if leaf is None else self.job.replay(self.number[place], leaf.point)
        if seen is None:
            self._give_up(place, "gap")
        else:
            self._break({place: seen})
