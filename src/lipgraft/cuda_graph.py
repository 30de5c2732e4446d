"""Record work on a GPU as a CUDA graph, so that doing it again costs one call and Python is not waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class CapturedCall(Generic[T]):
    """A recorded call of `function`, which is kept because the graph reads and writes the tensors that it holds.

    result: what the call returned. Its tensors live in the graph's memory: every replay writes them anew.
    """

    function: Callable[[], T]
    graph: torch.cuda.CUDAGraph
    result: T

    def replay(self) -> T:
        self.graph.replay()
        return self.result


def capture(
    function: Callable[[], T],
    device: torch.device,
    *,
    warm_up: Callable[[], object],
    memory: Any = None,
    generator: torch.Generator | None = None,
) -> CapturedCall[T]:
    """Record one call of `function`: fixed shapes, and nothing in it that waits for the device.

    The call is only recorded, not carried out; `replay` does that, on what the tensors it reads hold by then.

    warm_up: called before, on a stream of its own, so that libraries choose their kernels and allocate their
    workspaces outside the recording.
    memory: a handle of `torch.cuda.graph_pool_handle`, for graphs that may share memory: those that are replayed one
    at a time, with results that are used before the next. By default the graph has its own.
    generator: the source of the function's random numbers, if it draws any; every replay draws new ones.
    """
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            warm_up()
    finally:  # out of memory, say: what is under way there still reads tensors that are about to be freed
        torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, pool=memory):
        result = function()
    return CapturedCall(function, graph, result)
