"""Memory and time are planned: work is cut to a budget, and cut smaller when the device says no."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from lipgraft.bounds.threads import on_threads
from lipgraft.network.graph import Conv, Linear, Network

T = TypeVar("T")

Late = Callable[[], bool]
"""Whether the time for some work is over. Asked between pieces of it, from any thread."""


def never() -> bool:
    """No limit of time."""
    return False


# Tensors of the size of the rows that live at the same time inside one step of a backward pass.
LIVE = 4
CPU_BUDGET = 48 * 2**20
GPU_BUDGET = 6 * 2**30
# The same for a subproblem whose lines are optimised, in tensors of the size of all neurons, with room to spare.
OPTIMISED_LIVE = 40
OPTIMISED_CPU_BUDGET = 256 * 2**20
HOST_BYTES = 8 * 2**30  # taken for free where the system does not say
# Multiplications between two looks at the clock: well below a second.
PRODUCTS = {"cpu": 2e9, "cuda": 1e12}
# Problems go to threads of their own when these keep at least this share of the cores busy.
SPREAD = 0.75


def budget(device: torch.device, most: int = GPU_BUDGET) -> int:
    """Bytes that a chunk of rows may take: half of what is free on a GPU, but no more than helps."""
    return min(free_bytes(device) // 2, most) if device.type == "cuda" else CPU_BUDGET


def fitting(floats: int, device: torch.device, dtype: torch.dtype, most: int) -> int:
    """How many subproblems to optimise at once: what fits a quarter of the free memory, between 2 and `most`.

    floats: numbers that one subproblem holds.
    """
    room = free_bytes(device) // 4 if device.type == "cuda" else OPTIMISED_CPU_BUDGET
    return int(max(2, min(most, room // (floats * dtype.itemsize * OPTIMISED_LIVE))))


def affordable(network: Network, device: torch.device, passes: int, most: int) -> int:
    """How many items to work on at once that take this many passes through the network each, between 1 and `most`.

    From the network's size, not from a clock, so that runs repeat.
    """
    products = sum(
        math.prod(node.shape) * math.prod(node.weight.shape[1:])
        for node in network.nodes
        if isinstance(node, Conv | Linear)
    )
    return int(max(1, min(most, PRODUCTS.get(device.type, PRODUCTS["cpu"]) / max(products * passes, 1))))


def free_bytes(device: torch.device) -> int:
    """Memory that can be had now, what PyTorch holds and does not use included."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return min(_free_on_host(), _free_in_group())


def _free_on_host() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return HOST_BYTES
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), HOST_BYTES)


def _free_in_group() -> int:
    """What a container's limit leaves, if there is one."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return sys.maxsize
    return max(0, int(limit) - int(used)) if limit.isdigit() else sys.maxsize


def is_out_of_memory(error: RuntimeError) -> bool:
    """Of PyTorch's allocator on a GPU, of the CUDA driver (graphs are not the allocator's), or on a CPU."""
    told = ("CUDA error: out of memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in told)


def chunked(
    batch: int,
    rows: int,
    bytes_per_row: int,
    device: torch.device,
    work: Callable[[slice, slice], None],
    *,
    parallel: bool = False,
    most: int = GPU_BUDGET,
) -> None:
    """Call work(problems, rows) on pieces of a (batch, rows) rectangle that fit the budget.

    Whole problems are taken together while they fit; otherwise one problem's rows are divided. Out of memory, the
    piece is halved and done again; a single row that does not fit is the caller's error to hear about.
    parallel: on a CPU, different problems may be worked on at the same time, when there are enough for all cores.
    most: the largest budget that helps on a GPU.
    """
    fit = max(1, budget(device, most) // (bytes_per_row * LIVE))
    threads = torch.get_num_threads() if parallel and device.type == "cpu" and batch * rows > fit else 1
    share = -(-batch // threads)
    if threads == 1 or batch < SPREAD * share * threads:
        return _in_turn(slice(0, batch), rows, fit, work)
    parts = [slice(b, min(b + share, batch)) for b in range(0, batch, share)]
    on_threads([partial(_in_turn, part, rows, fit, work) for part in parts])


def _in_turn(problems: slice, rows: int, fit: int, work: Callable[[slice, slice], None]) -> None:
    b = problems.start
    while b < problems.stop:
        wide = max(1, min(problems.stop - b, fit // max(rows, 1)))
        s = 0
        while s < rows:
            deep = rows if wide > 1 else min(rows - s, fit)
            try:
                work(slice(b, b + wide), slice(s, s + deep))
            except RuntimeError as error:
                if not is_out_of_memory(error) or (wide == 1 and deep == 1):
                    raise
                failed = True
            else:
                failed, s = False, s + deep
            if failed:
                release()
                fit = max(1, wide * deep // 2)
                wide = max(1, min(wide, fit // rows))
        b += wide


def in_halves(
    items: list[int], work: Callable[[list[int]], list[T]], failed: Callable[[list[int], str], list[T]]
) -> list[T]:
    """work(items); what raises a RuntimeError is halved and done again, down to single items, which are `failed`.

    So one item that cannot be done takes no other with it, unless the device itself failed. The second argument of
    `failed` says why: "memory", or the error's text.
    """
    if not items:
        return []
    try:
        return work(items)
    except RuntimeError as error:
        reason = explain(error)
    release()
    if len(items) == 1:
        return failed(items, reason)
    middle = len(items) // 2
    return in_halves(items[:middle], work, failed) + in_halves(items[middle:], work, failed)


def explain(error: RuntimeError) -> str:
    """ "memory", or the first line of what went wrong.

    A device that failed is not the image's fault: nothing runs there any more, so the error goes on its way.
    """
    if is_out_of_memory(error):
        return "memory"
    if isinstance(error, torch.AcceleratorError):
        raise error
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
