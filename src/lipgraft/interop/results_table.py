"""results.csv: one line per decided instance, on the disk before the next one begins."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, fields
from pathlib import Path

WORDS = ("unsat", "sat", "unknown", "timeout", "error")


@dataclass(frozen=True)
class InstanceResult:
    """One line of results.csv. digest: of the files and settings, so that old results are not taken for new."""

    onnx: str
    vnnlib: str
    timeout: float
    digest: str
    status: str
    seconds: float
    method: str
    reason: str

    @property
    def key(self) -> tuple[str, str, float, str]:
        """What makes two results answers to the same question."""
        return self.onnx, self.vnnlib, self.timeout, self.digest


def read_results(store: Path) -> list[InstanceResult]:
    """The whole lines of a results.csv; the last one of a killed run may be cut off, and is then done again."""
    if not store.exists():
        return []
    results = []
    for row in csv.reader(store.read_text(encoding="utf-8").splitlines()):
        whole = len(row) == len(fields(InstanceResult)) and row[4] in WORDS
        timeout, seconds = (_number(row[2]), _number(row[5])) if whole else (None, None)
        if timeout is not None and seconds is not None:
            results.append(InstanceResult(row[0], row[1], timeout, row[3], row[4], seconds, row[6], row[7]))
    return results


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def append_result(store: Path, result: InstanceResult) -> None:
    """One line more, on the disk before the next instance begins."""
    new = not store.exists()
    names = [field.name for field in fields(InstanceResult)]
    torn = not new and not store.read_bytes().endswith(b"\n")
    with store.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if torn:
            file.write("\n")
        if new:
            writer.writerow(names)
        writer.writerow([getattr(result, name) for name in names])
        file.flush()
        os.fsync(file.fileno())
