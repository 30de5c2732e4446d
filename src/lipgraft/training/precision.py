"""The arithmetic of a training step. Certification never uses any of this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def resolve(precision: str, device: torch.device) -> str:
    """float32, tf32 or bf16; auto chooses by device."""
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "float32"
    return precision


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Convolutions and matrix products in this precision; the caller's switches come back afterwards.

    Entered anew in each step: the bf16 copies of the weights that autocast keeps must not outlive the step.
    """
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv) if device.type == "cuda" else ()  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee" if precision == "float32" else "tf32"  # bf16: what is kept out of autocast
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
