"""A whole instances.csv: network, property and seconds per line; a killed run goes on where it stopped."""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from lipgraft.errors import LipgraftError, counted
from lipgraft.inputs import settings_of
from lipgraft.interop.clock import OutOfTime
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.onnx_file import fingerprint_onnx
from lipgraft.interop.result import VnnResult, write_result
from lipgraft.interop.results_table import WORDS, InstanceResult, append_result, read_results
from lipgraft.interop.verify import Subject, verify_specification
from lipgraft.interop.vnnlib import read_vnnlib
from lipgraft.verification import VerifySettings
from lipgraft.verification.settings import flat
from lipgraft.version import __version__

# What Python raises where a file says something that nobody has foreseen.
_UNFORESEEN = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError)
UNREADABLE = "none"  # in place of a file's digest; digests consist of the digits 0 to f


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
        return f"{counted(len(self.results), 'instance')}: {parts}; {self.seconds:.1f} s"


def read_instances(path: str | os.PathLike[str]) -> list[Instance]:
    """The lines of an instances.csv: ONNX file, VNNLIB file (both seen from the csv's folder), seconds."""
    file = Path(path)
    try:
        rows = [row for row in csv.reader(file.read_text(encoding="utf-8-sig").splitlines()) if row]
    except OSError as error:
        raise VnnlibError(f"{file} cannot be read: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise VnnlibError(f"{file} is not a table of instances: a text file in UTF-8, with commas.") from None
    instances = []
    for number, row in enumerate(rows, start=1):
        seconds = _positive(row[2]) if len(row) == 3 and row[0].strip() and row[1].strip() else None
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
    limit: float = math.inf,
    until: float = math.inf,
    device: torch.device | str = "cpu",
    settings: VerifySettings | None = None,
    progress: Callable[[int, int, InstanceResult], None] | None = None,
    certificates: str | os.PathLike[str] | None = None,
    wanted: Sequence[Instance] | None = None,
    decide: Decide | None = None,
) -> InstancesSummary:
    """Verify the instances of an instances.csv.

    out: a folder that gets results.csv, line by line, and a results file per instance; by default `results` beside the
    csv. What stands there for the same files, seconds and settings is not done again, unless it was an error; nor is
    what was decided under another limit, if it took no longer than it may now. timeout: seconds per instance, instead
    of the csv's; limit: the most, whatever the csv says. A file that cannot be used makes its instance an "error".
    wanted: only these, in this order. until: when no further instance is begun, by time.monotonic; the summary then
    has those that are decided.
    progress: called with how many are done, how many there are, and the result, after each that is not from before.
    certificates: a folder that gets a folder for every instance; one that was "unsat" before is proved again if its
    folder is not there.
    decide: what decides the instances, instead of this process one after the other on its device.
    """
    table = Path(path)
    folder = table.parent / "results" if out is None else Path(out)
    instances = read_instances(table)
    store = folder / "results.csv"
    known: defaultdict[tuple[str, str, str], list[InstanceResult]] = defaultdict(list)
    for result in read_results(store):
        known[result.onnx, result.vnnlib, result.digest].append(result)
    mark_of = lru_cache(_network_mark)
    asked = _settings_mark(settings_of(settings, VerifySettings, VerifySettings()))
    results: dict[int, InstanceResult] = {}
    reused: list[int] = []
    place = {instance: number for number, instance in reversed(list(enumerate(instances)))}
    chosen = list(enumerate(instances)) if wanted is None else [(place[instance], instance) for instance in wanted]

    def left() -> Iterator[Task]:
        """What has to be done; what is known already goes to the results on the way."""
        for number, instance in chosen:
            seconds = min(instance.timeout if timeout is None else timeout, limit)
            files = found_file(table.parent / instance.onnx), found_file(table.parent / instance.vnnlib)
            mark = f"{mark_of(files[0])}-{_property_mark(files[1])}-{asked}"
            old = _answered(known[instance.onnx, instance.vnnlib, mark], seconds)
            name = f"{number:05d}_{_stem(instance.vnnlib)}"
            proofs = None if certificates is None else Path(certificates) / name
            kept = proofs is None or old is None or old.status != "unsat" or proofs.is_dir()
            if old is not None and UNREADABLE not in mark and kept:
                reused.append(number)
                results[number] = old
            elif time.monotonic() <= until:
                yield Task(number, name, mark, files, seconds, proofs)

    for task, answer in (decide or _one_by_one(Decider(device, settings)))(left()):
        write_result(folder / f"{task.name}.txt", answer.text())
        result = InstanceResult(
            instances[task.number].onnx,
            instances[task.number].vnnlib,
            task.seconds,
            task.mark,
            answer.status,
            round(answer.seconds, 4),
            answer.method or "",
            answer.reason or "",
        )
        append_result(store, result)
        results[task.number] = result
        if progress is not None:
            progress(len(results), len(chosen), result)
    return InstancesSummary(tuple(results[number] for number in sorted(results)), len(reused), folder)


@dataclass(frozen=True)
class Task:
    """An instance to be decided. number: its line; name: of its results file; mark: of its files and the settings."""

    number: int
    name: str
    mark: str
    files: tuple[Path, Path]
    seconds: float
    certificates: Path | None


Decide = Callable[[Iterable[Task]], Iterable[tuple[Task, VnnResult]]]
"""Answers to tasks, in any order; the next task is taken when its turn has come."""


class Decider:
    """Decides instances on one device, one after the other."""

    def __init__(self, device: torch.device | str, settings: VerifySettings | None) -> None:
        self.networks, self.settings = _Networks(device), settings

    def __call__(self, task: Task) -> VnnResult:
        return _verified(self.networks, task.files, task.seconds, self.settings, task.certificates)


def _one_by_one(decider: Decider) -> Decide:
    return lambda tasks: ((task, decider(task)) for task in tasks)


def _answered(before: Sequence[InstanceResult], seconds: float) -> InstanceResult | None:
    """What earlier runs say of an instance that may take so many seconds now; the newest counts."""
    for result in reversed(before):
        decided = result.status in ("sat", "unsat") and result.seconds <= seconds
        if decided or (result.timeout == seconds and result.status != "error"):
            return result
    return None


@dataclass
class _Networks:
    """Keeps the last network that was read: neighbours in a table often ask about the same one."""

    device: torch.device | str
    path: Path | None = None
    subject: Subject | None = None

    def read(self, path: Path, deadline: float) -> Subject:
        if self.subject is None or self.path != path:
            self.subject = None  # frees its memory before the next one is read
            self.subject, self.path = Subject.read(path, self.device, deadline=deadline), path
        return self.subject


def _verified(
    networks: _Networks,
    files: tuple[Path, Path],
    seconds: float,
    settings: VerifySettings | None,
    certificates: Path | None,
) -> VnnResult:
    """One instance; what is wrong with its files is its result."""
    started = time.monotonic()
    deadline = started + seconds
    try:
        if str(files[0]).endswith("]"):  # [('f', 'one.onnx'), ('g', 'other.onnx')]
            raise VnnlibError("its line names several networks; only properties of one network can be decided.")
        specification = read_vnnlib(files[1], deadline=deadline)
        subject = networks.read(files[0], deadline)
        answer = verify_specification(
            subject, specification, deadline, where=str(files[1]), settings=settings, certificates=certificates
        )
    except OutOfTime:
        answer = VnnResult("timeout")
    except (LipgraftError, RuntimeError, MemoryError) as error:  # one that fails takes no other with it
        answer = VnnResult("error", reason=" ".join(str(error).split()) or "out of memory")
    except _UNFORESEEN as error:
        answer = VnnResult("error", reason=" ".join(f"{type(error).__name__}: {error}".split()))
    return replace(answer, seconds=time.monotonic() - started)


def found_file(file: Path) -> Path:
    """The file, or its gzip where only that is there: tables are often older than the packing."""
    packed = Path(f"{file}.gz")
    return packed if not os.path.exists(file) and os.path.exists(packed) else file


def _network_mark(file: Path) -> str:
    """The beginning of the network's fingerprint; one that cannot be read has none."""
    try:
        return fingerprint_onnx(file)[:16]
    except LipgraftError:
        return UNREADABLE


def _property_mark(file: Path) -> str:
    """The beginning of a file's SHA-256; a file that cannot be read has none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except (OSError, ValueError):
        return UNREADABLE


def _settings_mark(settings: VerifySettings) -> str:
    """Of lipgraft's version and of every setting but the time limits, which stand in a column of their own."""
    plain = flat(settings.changed(limits={"timeout": 1.0, "total_seconds": None}))
    text = ", ".join(f"{name}={value!r}" for name, value in plain.items())
    return hashlib.sha256(f"{__version__} VerifySettings({text})".encode()).hexdigest()[:8]


def _stem(name: str) -> str:
    """A part of a file's name: without control characters, and short enough for every file system."""
    stem = Path(name).name.removesuffix(".gz").removesuffix(".vnnlib")
    return re.sub(r"[\x00-\x1f\x7f]", "_", stem)[:60]


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
