"""A training step as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lipgraft.cuda_graph import capture
from lipgraft.training.step import Step

WARM_UP = 3
"""Plain steps before the capture, in which libraries choose their kernels and allocate their workspaces."""


def runner(step: Step) -> Callable[[], None]:
    """What to call for each step: the captured step on a GPU, if the settings allow it; elsewhere the step itself."""
    if step.x.device.type != "cuda" or not step.settings.capture:
        return step
    return captured(step)


def captured(step: Step) -> Callable[[], None]:
    """The step as a graph. The steps that the warm-up needs leave no trace: everything they change is put back."""
    generator = step.task.generator
    before = [tensor.clone() for tensor in step.tensors()]
    random = generator.get_state()
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True

    def warm_up() -> None:
        for _ in range(WARM_UP):
            step.position.zero_()
            step()

    try:
        return capture(step, step.x.device, warm_up=warm_up, generator=generator).replay
    finally:
        torch.backends.cudnn.benchmark = benchmark
        for tensor, value in zip(step.tensors(), before, strict=True):
            tensor.copy_(value)
        generator.set_state(random)
