"""The arithmetic of proofs: not rounded to TF32 or to a half precision type, whatever modes the caller runs in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# Every switch that lets PyTorch replace float32 products by something coarser.
_SWITCHES = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
    torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
)


class _Switches:
    """The switches belong to the process: of all blocks that are open, in any thread, the last one sets them back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: set[object] = set()
        self.before: list[str] = []

    def enter(self, block: object) -> None:
        with self.lock:
            if not self.open:
                self.before = [switch.fp32_precision for switch in _SWITCHES]
            self.open.add(block)
            for switch in _SWITCHES:
                switch.fp32_precision = "ieee"

    def leave(self, block: object) -> None:
        """Also of a block that an interrupt kept from entering."""
        with self.lock:
            if block in self.open:
                self.open.remove(block)
                if not self.open:
                    for switch, value in zip(_SWITCHES, self.before, strict=True):
                        switch.fp32_precision = value

    def start_again(self) -> None:
        """In a forked process: the blocks of other threads are not in it, and their lock would never open."""
        self.lock = threading.Lock()
        if self.open:
            for switch, value in zip(_SWITCHES, self.before, strict=True):
                switch.fp32_precision = value
            self.open.clear()


_switches = _Switches()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_switches.start_again)


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this block float32 means float32, autocast is off, and tensors are `ordinary_tensors`.

    The caller's settings come back when no thread is in such a block any more. A generator must not hold it open over
    a `yield`: see `stepwise`.
    """
    block = object()
    try:
        _switches.enter(block)
        with ordinary_tensors(), torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        _switches.leave(block)


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Within this block new tensors can take part in autograd, also where the caller is in inference mode.

    Whether gradients are recorded stays as it is.
    """
    recording = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(recording):
        yield


def ordinary(t: Tensor) -> Tensor:
    """t, or a copy of a tensor that was made in inference mode, which autograd could not keep."""
    return t.clone() if t.is_inference() else t


def stepwise(context: Callable[[], AbstractContextManager[None]], items: Iterator[T]) -> Iterator[T]:
    """The items, each computed within a new context: whoever takes them never sees its settings in between."""
    done = object()
    while True:
        with context():
            item = next(items, done)
        if item is done:
            return
        yield item  # type: ignore[misc]
