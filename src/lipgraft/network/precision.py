"""Full float32 arithmetic: bounds and checks must not be rounded to TF32 or to a half precision type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Every switch that lets PyTorch replace float32 products by something coarser.
_SWITCHES = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
    torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this block float32 means float32, and autocast is off; the caller's settings come back afterwards."""
    before = [switch.fp32_precision for switch in _SWITCHES]
    for switch in _SWITCHES:
        switch.fp32_precision = "ieee"
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for switch, value in zip(_SWITCHES, before, strict=True):
            switch.fp32_precision = value
