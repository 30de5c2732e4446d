"""The pool of all open subproblems, and which of them are bounded next.

It is on the device, and in the host's memory when that is full. Slots are reused, so that no round copies it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipgraft.bounds.memory import free_bytes, is_out_of_memory
from lipgraft.verification.branch_and_bound.subproblems import Subproblems, counted
from lipgraft.verification.settings import Limits

SPILLED = 4  # a quarter of the pool is moved at once, so that moving stays rare
FEW = 64  # subproblems that an image gets back which has none on the device
# The share of the free memory that open subproblems may take: growing needs half as much again for a moment, and the
# batches that are bounded need theirs.
FREE_SHARE = 0.4
GOLDEN = (5**0.5 - 1) / 2  # its multiples, without their whole parts, fill the interval from 0 to 1 evenly
CROWDED = 0.9  # of all memory: from here on subproblems are taken so that few new ones stay open


class Pool:
    """Every subproblem that was put in and not taken out is either in `slots` or in `spilled`.

    spilled: by image, packed subproblems in the host's memory.
    """

    def __init__(self, first: Subproblems, size: int, limit: int = 2**62, spill_limit: int = 0) -> None:
        """first: what to begin with; size: the neuron that stands for none; limits: in bytes, on device and host."""
        self.size, self.limit, self.spill_limit = size, limit, spill_limit
        self.used = torch.ones(len(first), dtype=torch.bool, device=first.image.device)
        self.slots = first.packed()
        self.spilled: dict[int, list[Subproblems]] = {}
        self.selections = 0
        self._length: int | None = len(first)  # None: nobody has counted

    def __len__(self) -> int:
        """How many are on the device."""
        if self._length is None:
            self._length = int(self.used.sum())
        return self._length

    @property
    def splits(self) -> int:
        """How many splits a subproblem has room for."""
        return self.slots.neuron.shape[1]

    def capacity(self) -> int:
        """How many subproblems the device has room for; one at least, or nothing could be done."""
        return max(1, self.limit // self.slots.row_bytes())

    def counts(self, images: int) -> Tensor:
        """(images,): how many subproblems of each are open, wherever they are."""
        out = counted(self.slots.image.long(), images, self.used)
        for image, blocks in self.spilled.items():
            out[image] += sum(len(block) for block in blocks)
        return out

    def worst(self, image: int) -> float:
        """The worst bound among the open subproblems of an image; infinite if it has none."""
        mine = self.slots.bound[self.used & (self.slots.image == image)]
        bounds = [mine, *(block.bound for block in self.spilled.get(image, []))]
        return min(float(bound.amin()) if len(bound) else torch.inf for bound in bounds)

    def margins(self) -> list[tuple[int, int]]:
        """The images and classes of the subproblems on the device."""
        pairs = torch.stack([self.slots.image[self.used].long(), self.slots.target[self.used].long()], 1)
        return [(image, target) for image, target in torch.unique(pairs, dim=0).tolist()]

    def margin_counts(self, images: int) -> list[int]:
        """How many classes each image has subproblems of, on the device."""
        out = [0] * images
        for image, _ in self.margins():
            out[image] += 1
        return out

    def spread(self, image: int, target: int, most: int) -> Subproblems:
        """`most` of a margin's subproblems on the device, from the worst bound to the best; several times, if there
        are fewer."""
        mine = torch.nonzero(self.used & (self.slots.image == image) & (self.slots.target == target)).flatten()
        mine = mine[self.slots.bound[mine].argsort()]
        some = torch.linspace(0, len(mine) - 1, most, device=mine.device).long()
        return self.slots.at(mine[some])

    def deepen(self, splits: int) -> None:
        """Room for more splits."""
        if splits > self.splits:
            self.slots = self.slots.widened(self.slots.alpha.shape[1], splits, self.size)

    def worst_bounds(self, images: int) -> Tensor:
        """The worst bound of each image on the device, zero if it has none there: (images,)."""
        bound = torch.where(self.used, self.slots.bound, 0.0).clamp(max=0)
        return bound.new_zeros(images).scatter_reduce(0, self.slots.image.long(), bound, "amin")

    def select(self, count: int, cost: Tensor | None = None) -> Tensor:
        """Up to `count` slots: equally many from every image, as far as they go, and the worst bounds of each.

        cost: (images,); an image that costs twice as much gets half as many, over several calls if that is below one,
        and one that costs infinitely much gets none, if there are others.

        The best bounds instead when memory is nearly full: what is almost proved leaves few open halves behind.
        """
        live = torch.nonzero(self.used).flatten()
        if cost is not None:
            wanted = live[cost[self.slots.image[live].long()].isfinite()]
            live = wanted if len(wanted) else live
        if len(live) <= count:
            return live
        chosen = self._by_urgency(live, cost, worst_first=not self._crowded())[:count]
        self.selections += 1
        return chosen

    def take(self, slots: Tensor) -> Subproblems:
        """Remove these subproblems and return them."""
        self._empty(slots)
        return self.slots.at(slots).unpacked()

    def of(self, images: Tensor) -> Tensor:
        """The slots on the device that hold subproblems of these images, (J,)."""
        return torch.nonzero(self.used & torch.isin(self.slots.image, images.to(self.slots.image))).flatten()

    def update(self, slots: Tensor, sub: Subproblems, left: Tensor) -> None:
        """New lines, multipliers and bounds of the subproblems in these slots, (B,). left: (B,), which stay open."""
        for name, tensor in sub.packed().tensors().items():
            self.slots.tensors()[name].index_copy_(0, slots, tensor)
        self.used[slots] = left
        self._length = None

    def fits(self, count: int) -> bool:
        """Whether there is room for this many more, on the device or in the host's memory."""
        return len(self) + count <= self.capacity() + self._host_room()

    def push(self, more: Subproblems) -> None:
        """Add subproblems of the pool's widths. What the device has no room for, the least urgent, goes to the host."""
        packed = more.packed()
        while not self._room_for(len(packed)):
            if len(self):
                missing = len(self) + len(packed) - self.capacity()
                many = min(self.capacity() // SPILLED, self._host_room())
                self._spill(self._by_urgency(torch.nonzero(self.used).flatten())[-max(missing, many, 1) :])
            else:
                order = torch.argsort(packed.bound, stable=True)
                self._store(packed.at(order[self.capacity() :]))
                packed = packed.at(order[: self.capacity()])
        self._insert(packed)

    def drop(self, image: int) -> None:
        """Forget all subproblems of an image."""
        self.used &= self.slots.image != image
        self._length = None
        self.spilled.pop(image, None)

    def leave(self, images: list[int]) -> Subproblems:
        """Take out all subproblems of these images, wherever they are kept, packed, on the CPU."""
        mine = self.used & torch.isin(self.slots.image, torch.tensor(images, device=self.used.device))
        parts = [self.slots.at(mine).to("cpu")]
        self.used &= ~mine
        self._length = None
        for image in images:
            parts += self.spilled.pop(image, [])
        return Subproblems.cat([part.widened(self.slots.alpha.shape[1], self.splits, self.size) for part in parts])

    def remove(self, proved: Callable[[Subproblems], Tensor]) -> None:
        """Take out what is proved, wherever it is kept. proved: of B packed subproblems, (B,)."""
        self.used &= ~proved(self.slots)
        self._length = None
        for image, blocks in list(self.spilled.items()):
            left = [block.at(~proved(block.to(self.used.device)).to(block.bound.device)) for block in blocks]
            self.spilled[image] = [block for block in left if len(block)]
            if not self.spilled[image]:
                del self.spilled[image]

    # --- room on the device

    def refill(self) -> None:
        """Bring subproblems back from the host while less than half of the pool is in use.

        An image that has none on the device gets some in any case, so that it does not wait for all others to end.
        """
        while self.spilled:
            here = torch.bincount(self.slots.image[self.used], minlength=max(self.spilled) + 1).tolist()
            image = min(self.spilled, key=lambda some: here[some])
            room = self.capacity() // 2 - len(self)
            if here[image] == 0:
                room = max(room, min(FEW, self.capacity() - len(self)))
            blocks = self.spilled[image]
            worst = min(range(len(blocks)), key=lambda k: float(blocks[k].bound[0]))
            count = min(len(blocks[worst]), room)
            if count <= 0 or not self._room_for(count):
                return
            block = blocks.pop(worst)
            self._insert(block.at(slice(0, count)).to(self.used.device))
            if count < len(block):
                blocks.append(block.at(slice(count, None)))
            if not blocks:
                del self.spilled[image]

    def _room_for(self, count: int) -> bool:
        """Whether there are this many free slots, perhaps new ones."""
        missing = count - (len(self.used) - len(self))
        return len(self) + count <= self.capacity() and (missing <= 0 or self._grow(missing))

    def _empty(self, slots: Tensor) -> None:
        """These slots, all different and all in use, are free."""
        left, self._length = len(self) - len(slots), None
        self.used[slots] = False
        self._length = left

    def _spill(self, slots: Tensor) -> None:
        self._empty(slots)
        self._store(self.slots.at(slots))

    def _store(self, packed: Subproblems) -> None:
        """Keep subproblems in the host's memory: for each image a block, its worst bounds first."""
        moved = packed.to("cpu")
        order = torch.argsort(moved.bound, stable=True)
        order = order[torch.argsort(moved.image[order], stable=True)]
        images, counts = torch.unique_consecutive(moved.image[order], return_counts=True)
        for image, rows in zip(images.tolist(), torch.split(order, counts.tolist()), strict=True):
            self.spilled.setdefault(image, []).append(moved.at(rows))

    def _host_room(self) -> int:
        """How many more subproblems fit into the host's memory."""
        return max(0, self.spill_limit - self._spilled_bytes()) // self.slots.row_bytes()

    def _spilled_bytes(self) -> int:
        return sum(len(block) * block.row_bytes() for blocks in self.spilled.values() for block in blocks)

    def _crowded(self) -> bool:
        held = len(self) * self.slots.row_bytes() + self._spilled_bytes()
        return held > CROWDED * (self.limit + self.spill_limit)

    def _by_urgency(self, live: Tensor, cost: Tensor | None = None, *, worst_first: bool = True) -> Tensor:
        """These slots, (L,): the most urgent of every image, then the second of every image, and so on. In an image its
        margins take turns, so that those that are proved with little work are proved soon.

        cost: (images,); from an image that costs twice as much only every second time. Where its first turn comes
        changes from call to call, or an image whose turn comes after all places are taken would never get one.
        """
        image, target = self.slots.image[live].long(), self.slots.target[live].long()
        margin = image * (target.amax() + 1) + target
        order = torch.argsort(self.slots.bound[live], stable=True, descending=not worst_first)
        order = order[torch.argsort(_ranks(margin[order]), stable=True)]
        rank, image = _ranks(image[order]), image[order]
        turn = rank if cost is None else (rank + 1 - GOLDEN * self.selections % 1) * cost[image]
        return live[order[torch.argsort(turn, stable=True)]]

    def _insert(self, packed: Subproblems) -> None:
        packed = packed.widened(self.slots.alpha.shape[1], self.splits, self.size)
        free = torch.nonzero(~self.used).flatten()
        place = free[: len(packed)]
        now, self._length = len(self) + len(packed), None
        self.used[place] = True
        self._length = now
        for name, tensor in self.slots.tensors().items():
            tensor.index_copy_(0, place, packed.tensors()[name])

    def _grow(self, missing: int) -> bool:
        """Twice as large, so that growing stays rare, unless the limit allows less.

        Whether that was possible: a device that has less memory than was thought sets the limit.
        """
        extra = max(missing, min(len(self.used), self.capacity() - len(self.used)))
        try:
            grown = {name: torch.cat([t, t.new_zeros(extra, *t.shape[1:])]) for name, t in self.slots.tensors().items()}
        except RuntimeError as error:
            if not is_out_of_memory(error) or (missing == 1 and len(self) == 0):  # no room for a single one
                raise
            self.limit = len(self.used) * self.slots.row_bytes()
            return False
        self.slots = Subproblems(**grown)
        self.used = torch.cat([self.used, self.used.new_zeros(extra)])
        return True


def _ranks(group: Tensor) -> Tensor:
    """How many rows of its group are before each: (L,) -> (L,)."""
    order = torch.argsort(group, stable=True)
    ordered = group[order]
    everyone = torch.arange(len(group), device=group.device)
    return torch.empty_like(everyone).scatter(0, order, everyone - torch.searchsorted(ordered, ordered))


def pool_limits(device: torch.device, limits: Limits) -> tuple[int, int]:
    """Bytes for open subproblems on the device and in the host's memory; by default a share of what is free there."""
    pool, spill = limits.pool_gigabytes, limits.spill_gigabytes
    room = free_bytes(device) * FREE_SHARE if pool is None else pool * 2**30
    if spill is not None:
        return int(room), int(spill * 2**30)
    # A CPU's own pool is in the host's memory already.
    return int(room), 0 if device.type == "cpu" else int(free_bytes(torch.device("cpu")) * FREE_SHARE)
