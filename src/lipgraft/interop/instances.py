"""A whole instances.csv: network, property and seconds per line; a killed run goes on where it stopped."""

from __future__ import annotations

import csv
import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from lipgraft.errors import LipgraftError
from lipgraft.files import atomic_write_text
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.result import VnnResult
from lipgraft.interop.results_table import WORDS, InstanceResult, append_result, read_results
from lipgraft.interop.verify import Subject, verify_specification
from lipgraft.interop.vnnlib import read_vnnlib
from lipgraft.verify import VerifySettings


@dataclass(frozen=True)
class Instance:
    """One line of an instances.csv, as it stands there."""

    onnx: str
    vnnlib: str
    timeout: float


@dataclass(frozen=True)
class InstancesSummary:
    """The results in the order of the instances; reused: how many an earlier run had; folder: where they are."""

    results: tuple[InstanceResult, ...]
    reused: int
    folder: Path

    @property
    def counts(self) -> dict[str, int]:
        """How many results there are of each word."""
        seen = Counter(result.status for result in self.results)
        return {word: seen[word] for word in WORDS}

    @property
    def seconds(self) -> float:
        """Of all instances together."""
        return sum(result.seconds for result in self.results)

    def __str__(self) -> str:
        parts = ", ".join(f"{count} {word}" for word, count in self.counts.items() if count) or "nothing to do"
        return f"{len(self.results)} instances: {parts}; {self.seconds:.1f} s"


def read_instances(path: str | os.PathLike[str]) -> list[Instance]:
    """The lines of an instances.csv: ONNX file, VNNLIB file (both seen from the csv's folder), seconds."""
    file = Path(path)
    try:
        rows = [row for row in csv.reader(file.read_text(encoding="utf-8").splitlines()) if row]
    except OSError as error:
        raise VnnlibError(f"{file} cannot be read: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise VnnlibError(f"{file} is not a table of instances.") from None
    instances = []
    for number, row in enumerate(rows, start=1):
        seconds = _positive(row[2]) if len(row) == 3 else None
        if seconds is None:
            raise VnnlibError(f"{file}, line {number}: expected ONNX file, VNNLIB file and seconds, got {row}.")
        instances.append(Instance(row[0].strip(), row[1].strip(), seconds))
    if not instances:
        raise VnnlibError(f"{file} lists no instances.")
    return instances


def verify_instances(
    path: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    device: torch.device | str = "cpu",
    settings: VerifySettings | None = None,
    progress: Callable[[int, int, InstanceResult], None] | None = None,
) -> InstancesSummary:
    """Verify every instance of an instances.csv.

    out: a folder that gets results.csv, line by line, and a results file per instance; by default `results` beside the
    csv. What stands there for the same files, seconds and settings is not done again, unless it was an error.
    timeout: seconds per instance, instead of the csv's. A file that cannot be used makes its instance an "error".
    progress: called with how many are done, how many there are, and the result, after each that is not from before.
    """
    table = Path(path)
    folder = table.parent / "results" if out is None else Path(out)
    instances = read_instances(table)
    store = folder / "results.csv"
    known = {result.key: result for result in read_results(store)}
    digest, subject = lru_cache(_digest), lru_cache(maxsize=1)(lambda onnx: Subject.read(onnx, device))
    asked = _settings_digest(settings or VerifySettings())
    results: list[InstanceResult] = []
    reused = 0
    for number, instance in enumerate(instances):
        seconds = instance.timeout if timeout is None else timeout
        files = _found(table.parent / instance.onnx), _found(table.parent / instance.vnnlib)
        mark = f"{digest(files[0])}-{digest(files[1])}-{asked}"
        old = known.get((instance.onnx, instance.vnnlib, seconds, mark))
        if old is not None and old.status != "error":
            reused += 1
            results.append(old)
            continue
        answer = _verified(subject, files, seconds, settings)
        atomic_write_text(folder / f"{number:05d}_{_stem(instance.vnnlib)}.txt", answer.text())
        result = InstanceResult(
            instance.onnx,
            instance.vnnlib,
            seconds,
            mark,
            answer.status,
            round(answer.seconds, 4),
            answer.method or "",
            answer.reason or "",
        )
        append_result(store, result)
        results.append(result)
        if progress is not None:
            progress(len(results), len(instances), result)
    return InstancesSummary(tuple(results), reused, folder)


def _verified(
    subject: Callable[[Path], Subject], files: tuple[Path, Path], seconds: float, settings: VerifySettings | None
) -> VnnResult:
    """One instance; what is wrong with its files is its result."""
    started = time.monotonic()
    try:
        specification = read_vnnlib(files[1])
        network = subject(files[0])
        answer = verify_specification(network, specification, started + seconds, where=str(files[1]), settings=settings)
    except (LipgraftError, RuntimeError) as error:  # one instance that fails, by memory say, takes no other with it
        answer = VnnResult("error", reason=" ".join(str(error).split()))
    spent = time.monotonic() - started
    return VnnResult(answer.status, answer.counterexample, answer.reason, answer.method, spent)


def _found(file: Path) -> Path:
    """The file, or its gzip where only that is there: tables are often older than the packing."""
    packed = file.with_name(f"{file.name}.gz")
    return packed if not file.exists() and packed.exists() else file


def _digest(file: Path) -> str:
    """The beginning of a file's SHA-256; a file that cannot be read has none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError:
        return "none"


def _settings_digest(settings: VerifySettings) -> str:
    """Of every setting but the time limits, which stand in a column of their own."""
    plain = replace(settings, timeout=1.0, total_seconds=None)
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:8]


def _stem(name: str) -> str:
    return Path(name).name.removesuffix(".gz").removesuffix(".vnnlib")


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
