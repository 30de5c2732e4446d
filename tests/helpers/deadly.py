"""A network that kills the process that asks it the wrong question."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torch import Tensor, nn


class Deadly(nn.Module):
    """The body, but a process that asks it about the image `once` is killed the first time, about `always` every time.

    happened: a file that tells whether it has.
    """

    def __init__(self, body: nn.Module, once: Tensor, always: Tensor, happened: Path) -> None:
        super().__init__()
        self.body, self.happened = body, happened
        self.once, self.always = (float(image.flatten()[0]) for image in (once, always))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor):  # and no stand-in, as while the network is traced
            asked = x[:, 0, 0, 0].tolist()
            if self.always in asked or (self.once in asked and not self.happened.exists()):
                if self.once in asked:
                    self.happened.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        out: Tensor = self.body(x)
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
