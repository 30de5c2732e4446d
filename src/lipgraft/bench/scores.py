"""How long scoring takes, and how much memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.bench.resources import wait
from lipgraft.grafting import score
from lipgraft.runs.provenance import device_name


@dataclass(frozen=True)
class ScoreBenchmark:
    """seconds: of one whole run, warm; peak_bytes: the most device memory allocated during it, None on a CPU."""

    images: int
    seconds: float
    peak_bytes: int | None
    device: str


def bench_scores(model: nn.Module, x: Tensor, eps: float, *, warm_up: int = 200, **settings: Any) -> ScoreBenchmark:
    """Time `score(model, x, eps, **settings)`. x: (N, *input shape); warm_up: images scored once before, untimed."""
    device = next((p.device for p in model.parameters()), x.device)
    labels = settings.pop("y", None)
    if warm_up:
        score(model, x[:warm_up], eps, y=None if labels is None else labels[:warm_up], **settings)
    wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    score(model, x, eps, y=labels, **settings)
    wait(device)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return ScoreBenchmark(len(x), seconds, peak, device_name(device))
