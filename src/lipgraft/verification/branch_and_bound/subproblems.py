"""Subproblems: batches of them, arrays side by side with one row each, and the pool of all that are open.

The pool is on the device, and in the host's memory when that is full. Slots are reused, so that no round copies it.
Alpha is kept in 8 bits: every alpha in [0, 1] is sound, and a start for the next optimisation need not be exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.alpha_crown import coded, decoded
from lipgraft.bounds.memory import free_bytes, is_out_of_memory

SPILLED = 4  # a quarter of the pool is moved at once, so that moving stays rare
FEW = 64  # subproblems that an image gets back which has none on the device
# The share of the free memory that open subproblems may take: growing needs half as much again for a moment, and the
# batches that are bounded need theirs.
FREE_SHARE = 0.4
GOLDEN = (5**0.5 - 1) / 2  # its multiples, without their whole parts, fill the interval from 0 to 1 evenly
CROWDED = 0.9  # of all memory: from here on subproblems are taken so that few new ones stay open


@dataclass(frozen=True, eq=False)
class Subproblems:
    """B subproblems.

    image: (B,), row of `Images`; target: (B,), the class that must stay below the true one.
    bound: (B,), proved so far.
    alpha: (B, U k), the free parameters of each open neuron of the image.
    depth: (B,), number of splits.
    neuron, sign, beta, point: (B, D), the splits (see `LowerBound`) and their multipliers, in the order they were made.
    """

    image: Tensor
    target: Tensor
    bound: Tensor
    alpha: Tensor
    depth: Tensor
    neuron: Tensor
    sign: Tensor
    beta: Tensor
    point: Tensor

    def __len__(self) -> int:
        return len(self.image)

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def at(self, index: Tensor | slice) -> Subproblems:
        """Some of the rows. index: of the rows, or a boolean mask."""
        if isinstance(index, Tensor) and index.dtype == torch.bool:
            index = torch.nonzero(index).flatten()  # once: every mask waits for the device
        return Subproblems(**{name: t[index] for name, t in self.tensors().items()})

    def to(self, device: torch.device | str) -> Subproblems:
        return Subproblems(**{name: t.to(device) for name, t in self.tensors().items()})

    def row_bytes(self) -> int:
        """Memory of one row."""
        return sum(math.prod(t.shape[1:]) * t.element_size() for t in self.tensors().values())

    @staticmethod
    def cat(parts: Sequence[Subproblems]) -> Subproblems:
        names = [field.name for field in fields(Subproblems)]
        return Subproblems(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})

    def packed(self) -> Subproblems:
        """The same in less memory. Every alpha in [0, 1] is sound, so 8 bits are enough to start from."""
        return replace(
            self,
            image=self.image.int(),
            target=self.target.short(),
            alpha=coded(self.alpha),
            depth=self.depth.short(),
            neuron=self.neuron.int(),
            sign=self.sign.to(torch.int8),
        )

    def unpacked(self) -> Subproblems:
        dtype = self.beta.dtype
        return replace(
            self,
            image=self.image.long(),
            target=self.target.long(),
            alpha=decoded(self.alpha, dtype),
            depth=self.depth.long(),
            neuron=self.neuron.long(),
            sign=self.sign.to(dtype),
        )

    def widened(self, alphas: int, splits: int, size: int) -> Subproblems:
        """The same with room for this many alphas and splits; size: the neuron that stands for none."""
        more, deeper = alphas - self.alpha.shape[1], splits - self.neuron.shape[1]
        wide = self if more == 0 else replace(self, alpha=F.pad(self.alpha, (0, more)))
        if deeper == 0:
            return wide
        return replace(
            wide,
            neuron=F.pad(self.neuron, (0, deeper), value=size),
            sign=F.pad(self.sign, (0, deeper)),
            beta=F.pad(self.beta, (0, deeper)),
            point=F.pad(self.point, (0, deeper)),
        )

    def filled_up(self, count: int) -> Subproblems:
        """`count` rows: the first row is repeated behind the others, so that shapes stay fixed."""
        index = torch.arange(count, device=self.image.device)
        return self.at(torch.where(index < len(self), index, 0))

    def split(self, neuron: Tensor, point: Tensor | None = None) -> Subproblems:
        """Both halves of a split of one neuron each: B rows with z >= point, then B rows with z <= point.

        neuron, point: (B,); no points: at zero.
        """
        at = self.depth[:, None]
        one = torch.ones_like(self.beta[:, :1])
        chosen = self.neuron.scatter(1, at, neuron[:, None])
        both = Subproblems.cat([self, self])
        points = both.point if point is None else self.point.scatter(1, at, point[:, None]).repeat(2, 1)
        return replace(
            both,
            depth=both.depth + 1,
            neuron=chosen.repeat(2, 1),
            sign=torch.cat([self.sign.scatter(1, at, one), self.sign.scatter(1, at, -one)]),
            point=points,
        )


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

        cost: (images,); an image that costs twice as much gets half as many, over several calls if that is below one.

        The best bounds instead when memory is nearly full: what is almost proved leaves few open halves behind.
        """
        if len(self) <= count:
            return torch.nonzero(self.used).flatten()
        chosen = self._by_urgency(cost, worst_first=not self._crowded())[:count]
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
                self._spill(self._by_urgency()[-max(missing, many, 1) :])
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

    def _by_urgency(self, cost: Tensor | None = None, *, worst_first: bool = True) -> Tensor:
        """All slots in use: the most urgent of every image, then the second of every image, and so on.

        cost: (images,); from an image that costs twice as much only every second time. Where its first turn comes
        changes from call to call, or an image whose turn comes after all places are taken would never get one.
        """
        live = torch.nonzero(self.used).flatten()
        order = torch.argsort(self.slots.bound[live], stable=True, descending=not worst_first)
        order = order[torch.argsort(self.slots.image[live][order], stable=True)]
        image = self.slots.image[live][order].contiguous()
        rank = torch.arange(len(live), device=live.device) - torch.searchsorted(image, image)
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


def counted(image: Tensor, images: int, some: Tensor | None = None) -> Tensor:
    """How many rows belong to each image: (B,) -> (images,); some: (B,), which rows count.

    `torch.bincount` waits for the device.
    """
    one = torch.ones_like(image) if some is None else some.long()
    return torch.zeros(images, dtype=torch.int64, device=image.device).scatter_add_(0, image, one)


def pool_limits(device: torch.device, pool_gigabytes: float | None, spill_gigabytes: float | None) -> tuple[int, int]:
    """Bytes for open subproblems on the device and in the host's memory; None: a share of what is free there."""
    pool = free_bytes(device) * FREE_SHARE if pool_gigabytes is None else pool_gigabytes * 2**30
    if spill_gigabytes is not None:
        return int(pool), int(spill_gigabytes * 2**30)
    # A CPU's own pool is in the host's memory already.
    return int(pool), 0 if device.type == "cpu" else int(free_bytes(torch.device("cpu")) * FREE_SHARE)
