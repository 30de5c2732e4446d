"""The time and the memory that a piece of work takes."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor


def timed(
    work: Callable[[], Tensor], device: torch.device, repeats: int, *, warm_up: bool = True
) -> tuple[float, int, Tensor]:
    """(median seconds, peak bytes, the result). The peak counts the warm-up too: later runs may reuse its memory."""
    times = []
    with peak_memory(device) as peak:
        for _ in range(repeats + warm_up):
            wait(device)
            began = time.perf_counter()
            result = work()
            wait(device)
            times.append(time.perf_counter() - began)
    return statistics.median(times[warm_up:]), peak[0], result


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """A list that holds, after the block, the most bytes allocated on a GPU, or by how much the process grew."""
    peak = [0]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak[0] = torch.cuda.max_memory_allocated(device)
        return
    _give_back()
    before, done, highest = _resident(), threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.002):
            highest[0] = max(highest[0], _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        peak[0] = max(highest[0], _resident()) - before


def _give_back() -> None:
    """Return freed memory to the system, or earlier work would hide what the next one takes."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # of glibc alone
    if trim is not None:
        trim(0)


def _resident() -> int:
    """Bytes of this process in memory now; its highest value so far where the system does not say more."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource  # not on every system

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def wait(device: torch.device) -> None:
    """Until the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
