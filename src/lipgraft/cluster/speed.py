"""What a cluster gains and what it costs: what `lipgraft bench cluster` prints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.bounds.memory import release
from lipgraft.cluster.connection import LOCAL, connected
from lipgraft.cluster.driver import Cluster
from lipgraft.errors import SettingsError
from lipgraft.runs.provenance import device_name
from lipgraft.verification import VerifySettings, verify_stream
from lipgraft.verification.verdict import Decided

WARM = 8
"""Images that each worker verifies before, untimed: the first pass through a network is slower than all others."""

Ask = Callable[[nn.Module, Tensor, Tensor], Iterator[Decided]]


def bench_cluster(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    settings: VerifySettings,
    workers: Sequence[int] = (1, 2),
    address: str = LOCAL,
    device: str = "auto",
    threads: int = 1,
    progress: Callable[[int, str], None] = lambda workers, what: None,
) -> list[dict[str, Any]]:
    """Verify the same images in this process and then by so many workers, each time after a warm-up; one row each.

    Limits have to be counts, such as `limits.max_subproblems`: in the same time, two workers that share a GPU do half
    of the work each, and would seem to be fast.

    workers: 0 is this process. seconds, images_per_second, verdicts: of the model on all images. idle_ms: per image
    that a linear model gets wrong, so that nothing is bounded and nearly all is messages. driver_ms, idle_driver_ms:
    processor time of this process per image. ray_ms, idle_ray_ms: by how much longer an image took than here; below
    zero where several workers gain more than messages cost. start_seconds: until all workers had answered once.
    progress: called with the number of workers and what they begin with.
    """
    if len(x) < 4 * WARM * max(workers):
        raise SettingsError(f"{max(workers)} workers need at least {4 * WARM * max(workers)} images to measure them.")
    rows = []
    with connected(address, max(workers) * threads if address == LOCAL else None):
        for count in (0, *workers):
            crew = Cluster(address, workers=count or 1, device=device, threads=threads)
            with crew as cluster:
                place = torch.device("cuda" if cluster.on_gpu else "cpu")
                ask = _asked_of(cluster, eps, settings) if count else _asked_here(place, eps, settings)
                row = _measured(ask, model, x, y, count or 1, partial(progress, count))
                rows.append({"workers": count, "device": device_name(place), **row})
            release()  # what this process kept of the GPU's memory
    for row in rows:
        row["ray_ms"] = 1e3 * (row["seconds"] - rows[0]["seconds"]) / len(x)
        row["idle_ray_ms"] = row["idle_ms"] - rows[0]["idle_ms"]
    return rows


def _asked_here(place: torch.device, eps: float, settings: VerifySettings) -> Ask:
    return lambda model, x, y: verify_stream(model.to(place), x.to(place), y.to(place), eps, settings=settings)


def _asked_of(cluster: Cluster, eps: float, settings: VerifySettings) -> Ask:
    return lambda model, x, y: cluster.verify_stream(model, x, y, eps, settings=settings, together=True)


def _measured(
    ask: Ask, model: nn.Module, x: Tensor, y: Tensor, workers: int, begin: Callable[[str], None]
) -> dict[str, Any]:
    began = time.perf_counter()
    begin("starting")
    some = 4 * WARM * workers  # of which each worker gets a quarter of its part first
    list(ask(model, x[:some], y[:some]))
    start = time.perf_counter() - began
    begin(f"{len(x)} images")
    seconds, driver, verdicts = _clocked(ask, model, x, y)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2))
    begin(f"{len(x)} images without work")
    idle, idle_driver, _ = _clocked(ask, linear, x, linear(x.cpu()).argmin(1))
    return {
        "images": len(x),
        "seconds": seconds,
        "images_per_second": len(x) / seconds,
        "verdicts": dict(sorted(Counter(verdict.status for _, verdict in verdicts).items())),
        "driver_ms": 1e3 * driver / len(x),
        "idle_ms": 1e3 * idle / len(x),
        "idle_driver_ms": 1e3 * idle_driver / len(x),
        "start_seconds": start,
    }


def _clocked(ask: Ask, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, list[Decided]]:
    """(wall seconds, seconds of this process's processor, what was decided)"""
    began, processor = time.perf_counter(), time.process_time()
    verdicts = list(ask(model, x, y))
    return time.perf_counter() - began, time.process_time() - processor, verdicts
