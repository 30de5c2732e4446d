"""The verifier's speed: what `lipgraft bench verify` prints."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.bench.resources import wait
from lipgraft.runs.provenance import device_name
from lipgraft.verification import Verdict, VerifySettings, measure, verify_stream

MARKS = (5, 15, 60, 600)  # seconds


def bench_verify(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    timeout: float = 20.0,
    *,
    settings: VerifySettings | None = None,
    warm_up: int = 8,
) -> dict[str, Any]:
    """Verify the images once and say how fast. x: (N, *shape) in [0, 1]; warm_up: images verified before, untimed.

    verified_of_survivors: share verified of the images that survive the attack. ms_without_branching: mean device time
    of images that CROWN or optimised lines decide. subproblems_per_second: while branch and bound runs.
    subproblems_per_verified: mean over the images that branch and bound verified. verified_after: images verified until
    5, 15, 60 and 600 seconds of wall time, as far as the run went. curve: pairs (wall seconds, verified by then).
    """
    chosen = (settings or VerifySettings()).changed(limits={"timeout": timeout})
    device = next((p.device for p in model.parameters()), x.device)
    if warm_up:
        list(verify_stream(model, x[:warm_up], y[:warm_up], eps, settings=chosen.changed(limits={"timeout": 1.0})))
    wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    rounds: list[tuple[float, int]] = []
    verdicts: dict[int, Verdict] = {}
    curve: list[tuple[float, int]] = []
    stream = verify_stream(
        model, x, y, eps, settings=chosen, watch=lambda count: rounds.append((time.perf_counter() - began, count))
    )
    verified = 0
    for image, verdict in stream:
        verdicts[image] = verdict
        if verdict.status == "verified":
            verified += 1
            curve.append((round(time.perf_counter() - began, 3), verified))
    wall = time.perf_counter() - began
    everything = [verdicts[image] for image in range(len(x))]
    figures = measure(everything)
    branched = [v.subproblems for v in everything if v.status == "verified" and v.method == "bab"]
    cheap = [v for v in everything if v.status == "verified" and v.method in ("crown", "alpha-crown")]
    return {
        "images": len(x),
        "eps": eps,
        "timeout": timeout,
        "device": device_name(device),
        "wall_seconds": wall,
        "sa": figures.sa,
        "ra": figures.ra,
        "va": figures.va,
        "unr": figures.unr,
        "over": figures.over,
        "survivors": figures.reached,
        "verified": figures.verified,
        "falsified": figures.falsified,
        "unknown": figures.unknown,
        "error": figures.error,
        "verified_of_survivors": figures.verified / figures.reached if figures.reached else None,
        "methods": _methods(everything),
        "ms_without_branching": 1e3 * sum(v.seconds for v in cheap) / len(cheap) if cheap else None,
        "subproblems": sum(v.subproblems for v in everything),
        "subproblems_per_second": _speed(rounds),
        "subproblems_per_verified": sum(branched) / len(branched) if branched else None,
        "verified_after": {mark: sum(t <= mark for t, _ in curve) for mark in MARKS if mark <= wall},
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "curve": curve,
    }


def _methods(verdicts: list[Verdict]) -> dict[str, int]:
    """How many images ended how: "verified by crown", "unknown (timeout)", ..."""
    out: dict[str, int] = {}
    for v in verdicts:
        key = f"{v.status} ({v.reason})" if v.reason else f"{v.status} by {v.method}"
        out[key] = out.get(key, 0) + 1
    return dict(sorted(out.items()))


def _speed(rounds: list[tuple[float, int]]) -> float | None:
    """Subproblems per second from the end of the first round on, which pays for warming up."""
    if len(rounds) < 2:
        return None
    return sum(count for _, count in rounds[1:]) / max(rounds[-1][0] - rounds[0][0], 1e-9)
