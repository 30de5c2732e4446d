"""How much to do at once, how many subproblems fit, and what to do when they do not."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from lipgraft.bounds.memory import is_out_of_memory
from lipgraft.network.graph import Conv, Linear, Network
from lipgraft.verification.layout import Layout

# Tensors of the size of all neurons that one optimised subproblem keeps alive, measured with room to spare.
LIVE = 40
CPU_BYTES = 256 * 2**20
HOST_BYTES = 8 * 2**30  # taken for free where the system does not say

# Multiplications between two looks at the clock: well below a second.
PRODUCTS = {"cpu": 2e9, "cuda": 1e12}

# The share of the free memory that open subproblems may take: growing needs half as much again for a moment, and the
# batches that are bounded need theirs.
POOL_SHARE = 0.4

T = TypeVar("T")


def fitting(layout: Layout, device: torch.device, dtype: torch.dtype, most: int) -> int:
    """How many subproblems to bound at once: what fits a quarter of the free memory, between 2 and `most`."""
    each = max(layout.size, layout.path.floats) * dtype.itemsize * LIVE
    room = CPU_BYTES
    if device.type == "cuda":
        room = free_bytes(device) // 4
    return int(max(2, min(most, room // each)))


def affordable(network: Network, device: torch.device, passes: int, most: int) -> int:
    """How many items to work on at once that take this many passes through the network each, between 1 and `most`.

    From the network's size, not from a clock, so that runs repeat.
    """
    products = sum(
        math.prod(node.shape) * node.weight[0].numel() for node in network.nodes if isinstance(node, Conv | Linear)
    )
    return int(max(1, min(most, PRODUCTS.get(device.type, PRODUCTS["cpu"]) / max(products * passes, 1))))


def pool_limits(device: torch.device, pool_gigabytes: float | None, spill_gigabytes: float | None) -> tuple[int, int]:
    """Bytes for open subproblems on the device and in the host's memory; None: a share of what is free there."""
    pool = free_bytes(device) * POOL_SHARE if pool_gigabytes is None else pool_gigabytes * 2**30
    if spill_gigabytes is not None:
        return int(pool), int(spill_gigabytes * 2**30)
    # A CPU's own pool is in the host's memory already.
    return int(pool), 0 if device.type == "cpu" else int(free_bytes(torch.device("cpu")) * POOL_SHARE)


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
