"""Memory is planned: work is cut to a budget, and cut smaller when the device says no."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import torch

from lipgraft.bounds.threads import on_threads

Late = Callable[[], bool]
"""Whether the time for some work is over. Asked between pieces of it, from any thread."""


def never() -> bool:
    """No limit of time."""
    return False


# Tensors of the size of the rows that live at the same time inside one step of a backward pass.
LIVE = 4
CPU_BUDGET = 48 * 2**20
GPU_BUDGET = 6 * 2**30
# Problems go to threads of their own when these keep at least this share of the cores busy.
SPREAD = 0.75


def budget(device: torch.device, most: int = GPU_BUDGET) -> int:
    """Bytes that a chunk of rows may take: half of what is free on a GPU, but no more than helps."""
    if device.type != "cuda":
        return CPU_BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min((free + reusable) // 2, most)


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
        return _in_turn(slice(0, batch), rows, fit, device, work)
    parts = [slice(b, min(b + share, batch)) for b in range(0, batch, share)]
    on_threads([partial(_in_turn, part, rows, fit, device, work) for part in parts])


def _in_turn(problems: slice, rows: int, fit: int, device: torch.device, work: Callable[[slice, slice], None]) -> None:
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
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                fit = max(1, wide * deep // 2)
                wide = max(1, min(wide, fit // rows))
        b += wide
