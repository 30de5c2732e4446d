"""Several pieces of work on a CPU at once, each on one core.

PyTorch's own way, every operation on all cores, makes the cores wait for each other after each of thousands of short
operations, and that wait is long when anything else runs on the machine. Here they wait once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch


def on_threads(works: Sequence[Callable[[], None]]) -> None:
    """Call each on a thread of its own, in the caller's gradient mode, and wait. The first error is raised."""
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def one(work: Callable[[], None]) -> None:
        torch.set_num_threads(1)  # of this thread, and of threads that are new to PyTorch; set back below
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            work()

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(len(works)) as pool:
            for done in [pool.submit(one, work) for work in works]:
                done.result()
    finally:
        torch.set_num_threads(threads)
