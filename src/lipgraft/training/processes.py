"""One training run in several processes, which torchrun starts: each takes its part of every batch.

The processes hold the same weights at every step: they begin with those of the first, and all update by the mean of
their gradients. A process that trains alone asks nobody.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed

from lipgraft.draws import PartGenerator
from lipgraft.errors import SettingsError

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """rank: this one's number, from 0; count: how many there are."""

    rank: int = 0
    count: int = 1

    @staticmethod
    def here() -> Processes:
        """Those of PyTorch's process group, if there is one; otherwise this one alone."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return Processes()
        return Processes(distributed.get_rank(), distributed.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and talks."""
        return self.rank == 0

    def part(self, batch: int) -> slice:
        """This process's rows of a batch."""
        if batch % self.count:
            raise SettingsError(f"a batch of {batch} cannot be shared by {self.count} processes; choose a multiple.")
        own = batch // self.count
        return slice(self.rank * own, (self.rank + 1) * own)

    def generator(self, device: torch.device) -> torch.Generator:
        """For what is drawn for a batch, the same whatever the number of processes."""
        if self.count == 1:
            return torch.Generator(device)
        generator = PartGenerator(device)
        generator.part, generator.parts = self.rank, self.count
        return generator

    def mean(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The mean over the processes of each tensor, all in one message."""
        if self.count == 1:
            return tensors
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        parts = torch.split(flat.div_(self.count), [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """`mean`, in place; of no tensors too."""
        if self.count > 1 and tensors:
            for tensor, mean in zip(tensors, self.mean(tensors), strict=True):
                tensor.copy_(mean)

    def gather_rows_(self, tensor: Tensor, mine: Tensor, anybodys: Tensor) -> None:
        """Give every process the rows that one of them changed. mine, anybodys: numbers of rows; no two share one."""
        if self.count == 1:
            return
        rows = torch.zeros_like(tensor)
        rows[mine] = tensor[mine]
        distributed.all_reduce(rows)
        tensor[anybodys] = rows[anybodys]

    def from_first(self, value: T, tensors: Sequence[Tensor]) -> T:
        """The first process's value, and its tensors in place of everybody's."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box)
        for tensor in tensors:
            content = tensor.detach().contiguous()
            distributed.broadcast(content, 0)
            with torch.no_grad():
                tensor.copy_(content)
        return box[0]

    def wait(self) -> None:
        """Until all have come here."""
        if self.count > 1:
            distributed.barrier()


@contextmanager
def joined(device: torch.device) -> Iterator[tuple[Processes, torch.device]]:
    """The processes that torchrun started, and this one's device; without torchrun, this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes(), device
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield Processes.here(), device
    finally:
        distributed.destroy_process_group()
