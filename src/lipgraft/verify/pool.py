"""The open subproblems of all images, on the device.

Slots are reused, so that no round copies the pool. Alpha is kept in 8 bits: every alpha in [0, 1] is sound, and a
start for the next optimisation need not be exact.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from lipgraft.verify.subproblems import Subproblems

STEPS = 255


class Pool:
    def __init__(self, first: Subproblems, size: int, limit: int = 2**62) -> None:
        """first: what to begin with; size: the neuron that stands for none; limit: in bytes, see `capacity`."""
        self.size, self.limit = size, limit
        self.used = torch.ones(len(first), dtype=torch.bool, device=first.image.device)
        self.slots = _packed(first)

    def __len__(self) -> int:
        return int(self.used.sum())

    @property
    def splits(self) -> int:
        """How many splits a subproblem has room for."""
        return self.slots.neuron.shape[1]

    def capacity(self) -> int:
        """How many subproblems the memory limit allows."""
        each = sum(math.prod(t.shape[1:]) * t.element_size() for t in self.slots.tensors().values())
        return self.limit // each

    def deepen(self, splits: int) -> None:
        """Room for more splits."""
        if splits > self.splits:
            self.slots = self.slots.widened(self.slots.alpha.shape[1], splits, self.size)

    def select(self, count: int) -> Tensor:
        """Up to `count` slots: equally many from every image, as far as they go, and the worst bounds of each."""
        live = torch.nonzero(self.used).flatten()
        if len(live) <= count:
            return live
        order = torch.argsort(self.slots.bound[live], stable=True)
        order = order[torch.argsort(self.slots.image[live][order], stable=True)]
        image = self.slots.image[live][order].contiguous()
        rank = torch.arange(len(live), device=live.device) - torch.searchsorted(image, image)
        return live[order[torch.argsort(rank, stable=True)[:count]]]

    def take(self, slots: Tensor) -> Subproblems:
        """Remove these subproblems and return them."""
        self.used[slots] = False
        return _unpacked(self.slots.at(slots))

    def push(self, more: Subproblems) -> None:
        """Add subproblems of the pool's widths."""
        packed = _packed(more)
        free = torch.nonzero(~self.used).flatten()
        if len(free) < len(more):
            self._grow(len(more) - len(free))
            free = torch.nonzero(~self.used).flatten()
        place = free[: len(more)]
        self.used[place] = True
        for name, tensor in self.slots.tensors().items():
            tensor.index_copy_(0, place, packed.tensors()[name])

    def drop(self, images: Tensor) -> None:
        """Forget all subproblems of some images. images: boolean (I,)."""
        self.used &= ~images[self.slots.image]

    def _grow(self, missing: int) -> None:
        """Twice as large, so that growing stays rare, unless the limit allows less."""
        extra = max(missing, min(len(self.used), self.capacity() - len(self.used)))
        grown = {name: torch.cat([t, t.new_zeros(extra, *t.shape[1:])]) for name, t in self.slots.tensors().items()}
        self.slots = Subproblems(**grown)
        self.used = torch.cat([self.used, self.used.new_zeros(extra)])


def _packed(sub: Subproblems) -> Subproblems:
    return replace(
        sub,
        image=sub.image.int(),
        target=sub.target.short(),
        alpha=(sub.alpha * STEPS).round().to(torch.uint8),
        depth=sub.depth.short(),
        neuron=sub.neuron.int(),
        sign=sub.sign.to(torch.int8),
    )


def _unpacked(sub: Subproblems) -> Subproblems:
    dtype = sub.beta.dtype
    return replace(
        sub,
        image=sub.image.long(),
        target=sub.target.long(),
        alpha=sub.alpha.to(dtype) / STEPS,
        depth=sub.depth.long(),
        neuron=sub.neuron.long(),
        sign=sub.sign.to(dtype),
    )
