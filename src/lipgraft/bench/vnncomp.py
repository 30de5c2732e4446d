"""The instances of a VNN-COMP repository, decided and compared with what other verifiers answered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lipgraft.bench.published import Answer, Published, question, truth
from lipgraft.errors import SettingsError
from lipgraft.interop import Decide, Instance, InstanceResult, found_file, read_instances, verify_instances
from lipgraft.report.contest import DECIDED, figures
from lipgraft.verification import VerifySettings

RECORDED = 1.0  # seconds between two records of a run under way


@dataclass(frozen=True)
class Benchmark:
    """One table of instances. here: those whose files are there, in the table's order."""

    name: str
    table: Path
    instances: tuple[Instance, ...]
    here: tuple[Instance, ...]


def find_benchmarks(folder: Path, only: Sequence[str] = ()) -> list[Benchmark]:
    """The benchmarks below a folder: every table called instances.csv, or NAME_instances.csv as in 2021."""
    tables = sorted(path for path in folder.rglob("*instances.csv") if path.is_file())
    named = {_name(table): table for table in tables}
    unknown = [name for name in only if name not in named]
    if not named or unknown:
        known = f"it has {', '.join(named)}" if named else "it has no table called instances.csv"
        raise SettingsError(f"{folder} has no benchmark {', '.join(unknown) or 'at all'}; {known}.")
    return [_benchmark(name, table) for name, table in named.items() if not only or name in only]


def _name(table: Path) -> str:
    """The folder's name; where a benchmark has a folder for each version of VNNLIB, with that version."""
    folder = table.parent
    return f"{folder.parent.name}-{folder.name}" if folder.name in ("1.0", "2.0") else folder.name


def _benchmark(name: str, table: Path) -> Benchmark:
    instances = tuple(read_instances(table))

    def is_here(instance: Instance) -> bool:
        return all(found_file(table.parent / file).is_file() for file in (instance.onnx, instance.vnnlib))

    return Benchmark(name, table, instances, tuple(filter(is_here, instances)))


@dataclass(eq=False)
class _Asked:
    """What is asked of one benchmark, in the table's order, and the newest answer to each."""

    benchmark: Benchmark
    instances: Sequence[Instance]
    answers: dict[tuple[str, str], InstanceResult] = field(default_factory=dict)

    def take(self, result: InstanceResult) -> None:
        self.answers[result.onnx, result.vnnlib] = result

    def results(self) -> list[InstanceResult]:
        found = (self.answers.get((one.onnx, one.vnnlib)) for one in self.instances)
        return [result for result in found if result is not None]

    def open(self) -> list[Instance]:
        decided = {key for key, result in self.answers.items() if result.status in DECIDED}
        return [one for one in self.instances if (one.onnx, one.vnnlib) not in decided]

    def seconds_of_others(self, one: Instance, published: Sequence[Published]) -> float:
        """The least that another tool took; infinite if none decided it."""
        asked = question(self.benchmark.name, one.onnx, one.vnnlib)
        answers = (tool.answers.get(asked) for tool in published)
        return min((answer.seconds for answer in answers if answer and answer.status), default=math.inf)


def bench_vnncomp(
    benchmarks: Sequence[Benchmark],
    out: Path,
    *,
    published: Sequence[Published] = (),
    limits: Sequence[float] = (math.inf,),
    every: int = 1,
    total_seconds: float = math.inf,
    device: torch.device | str = "cpu",
    settings: VerifySettings | None = None,
    progress: Callable[[str, int, int, InstanceResult], None] | None = None,
    record: Callable[[list[dict[str, Any]]], None] | None = None,
    decide: Decide | None = None,
) -> list[dict[str, Any]]:
    """Decide every so many-th instance of each benchmark, and compare. One row per benchmark, with its instances in it.

    limits: the most seconds for an instance, one number per round. The first round asks every instance, in the table's
    order; a later one those that are still open, the ones that others decided fastest first. out: a folder with the
    results of each benchmark; what it has already is not done again. total_seconds: for all; in a round each benchmark
    has an equal share of what is left, after which no instance of it is begun. record: called with the rows so far
    after an instance, but not again within a second. decide: what decides the instances of a benchmark, instead of
    this process.
    """
    end = time.monotonic() + total_seconds
    runs = [_Asked(of, [one for one in of.instances[::every] if one in of.here]) for of in benchmarks]
    recorded = -math.inf

    def rows() -> list[dict[str, Any]]:
        return [scored(run.benchmark, run.results(), published, every, max(limits)) for run in runs]

    def told(run: _Asked, done: int, total: int, result: InstanceResult) -> None:
        nonlocal recorded
        run.take(result)
        if progress is not None:
            progress(run.benchmark.name, done, total, result)
        if record is not None and time.monotonic() > recorded + RECORDED:
            record(rows())
            recorded = time.monotonic()

    for turn, limit in enumerate(limits):
        for number, run in enumerate(runs):
            now = time.monotonic()
            wanted = run.open()
            if turn:
                wanted.sort(key=partial(run.seconds_of_others, published=published))
            summary = verify_instances(
                run.benchmark.table,
                out=out / run.benchmark.name,
                limit=limit,
                until=now + (end - now) / (len(runs) - number),
                device=device,
                settings=settings,
                progress=partial(told, run),
                wanted=wanted,
                decide=decide,
            )
            for result in summary.results:
                run.take(result)
    return rows()


def scored(
    benchmark: Benchmark, results: Sequence[InstanceResult], published: Sequence[Published], every: int, limit: float
) -> dict[str, Any]:
    """One benchmark's figures: ours, and those of the other tools on the same instances. limit: of the last round."""
    timeouts = {(one.onnx, one.vnnlib): one.timeout for one in benchmark.instances}
    limits = [min(timeouts[result.onnx, result.vnnlib], limit) for result in results]
    instances = [_instance(benchmark, *pair, published) for pair in zip(results, limits, strict=True)]
    size = len(benchmark.instances), len(benchmark.here)
    return figures(benchmark.name, size, every, instances, {tool.tool: tool.overhead for tool in published})


def _instance(
    benchmark: Benchmark, result: InstanceResult, limit: float, published: Sequence[Published]
) -> dict[str, Any]:
    name = benchmark.name.removesuffix("-1.0").removesuffix("-2.0")
    asked = question(name, result.onnx, result.vnnlib)
    answers: dict[str, Answer | None] = {tool.tool: tool.answers.get(asked) for tool in published}
    return {
        "onnx": result.onnx,
        "vnnlib": result.vnnlib,
        "limit": limit,
        "status": result.status,
        "seconds": result.seconds,
        "method": result.method,
        "reason": _plain(result.reason, benchmark.table.parent),
        "truth": truth(answers.values()),
        "tools": {tool: [answer.status, answer.seconds] for tool, answer in answers.items() if answer is not None},
    }


def _plain(reason: str, folder: Path) -> str:
    """A reason without where the benchmark lies on this machine."""
    return reason.replace(f"{folder}/", "")
