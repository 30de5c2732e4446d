"""Capture a training step as a CUDA graph, so that replaying it costs one call."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lipgraft.training.step import Step

WARM_UP = 3
"""Plain steps before the capture, in which libraries choose their kernels and allocate their workspaces."""


def runner(step: Step) -> Callable[[], None]:
    """What to call for each step: the captured step on a GPU, if the settings allow it; elsewhere the step itself."""
    if step.x.device.type != "cuda" or not step.settings.capture:
        return step
    return capture(step)


def capture(step: Step) -> Callable[[], None]:
    """The step as a graph. The steps that the warm-up needs leave no trace: everything they change is put back."""
    device, generator = step.x.device, step.task.generator
    before = [tensor.clone() for tensor in step.tensors()]
    random = generator.get_state()
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step.position.zero_()
                step()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            step()
    finally:
        torch.backends.cudnn.benchmark = benchmark
        for tensor, value in zip(step.tensors(), before, strict=True):
            tensor.copy_(value)
        generator.set_state(random)
    # The graph reads and writes the step's own tensors: they must live as long as it does.
    return _Replay(graph, step)


class _Replay:
    def __init__(self, graph: torch.cuda.CUDAGraph, step: Step) -> None:
        self.graph, self.step = graph, step

    def __call__(self) -> None:
        self.graph.replay()
