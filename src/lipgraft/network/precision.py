"""The arithmetic of proofs: not rounded to TF32 or to a half precision type, whatever modes the caller runs in."""

from __future__ import annotations

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


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this block float32 means float32, autocast is off, and tensors are `ordinary_tensors`.

    The caller's settings come back afterwards. A generator must not hold it open over a `yield`: see `stepwise`.
    """
    before = [switch.fp32_precision for switch in _SWITCHES]
    for switch in _SWITCHES:
        switch.fp32_precision = "ieee"
    try:
        with ordinary_tensors(), torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for switch, value in zip(_SWITCHES, before, strict=True):
            switch.fp32_precision = value


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
