"""How many subproblems fit, and what to do when they do not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from lipgraft.bounds.memory import is_out_of_memory
from lipgraft.verify.layout import Layout

# Tensors of the size of all neurons that one optimised subproblem keeps alive, measured with room to spare.
LIVE = 40
CPU_BYTES = 256 * 2**20

T = TypeVar("T")


def fitting(layout: Layout, device: torch.device, dtype: torch.dtype, most: int) -> int:
    """How many subproblems to bound at once: what fits a quarter of the free memory, between 2 and `most`."""
    each = max(layout.size, layout.path.floats) * dtype.itemsize * LIVE
    room = CPU_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        room = (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // 4
    return int(max(2, min(most, room // each)))


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
