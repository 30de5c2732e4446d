"""A network that kills the process that asks it the wrong question."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torch import Tensor, nn

from lipgraft.network import Builder, Ref, lowers_module


class Watch(nn.Module):
    """Passes images on, but a process that passes on the image `once` is killed the first time, `always` every time.

    happened: a file that tells whether it has.
    """

    def __init__(self, once: Tensor, always: Tensor, happened: Path) -> None:
        super().__init__()
        self.happened = happened
        self.once, self.always = (float(image.flatten()[0]) for image in (once, always))

    def forward(self, x: Tensor) -> Tensor:
        asked = x[:, 0, 0, 0].tolist()
        if self.always in asked or (self.once in asked and not self.happened.exists()):
            if self.once in asked:
                self.happened.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x


@lowers_module(Watch)
def watched(build: Builder, module: Watch, input: Ref) -> Ref:
    return input


class Deadly(nn.Module):
    """The body behind a `Watch`."""

    def __init__(self, body: nn.Module, once: Tensor, always: Tensor, happened: Path) -> None:
        super().__init__()
        self.body, self.watch = body, Watch(once, always, happened)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.watch(x))
        return out


class DeadlyTask:
    """Squares numbers, but 3 kills its process the first time, and 5 every time. happened: as above."""

    def __init__(self, happened: Path, device: str) -> None:
        self.happened, self.device = happened, device

    def __call__(self, number: int) -> int:
        if number == 5 or (number == 3 and not self.happened.exists()):
            if number == 3:
                self.happened.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number**2
