"""results.csv: one line per decided instance, on the disk before the next one begins."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, fields
from pathlib import Path

from lipgraft.interop.errors import VnnlibError

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


NAMES = [field.name for field in fields(InstanceResult)]


def read_results(store: Path) -> list[InstanceResult]:
    """The whole lines of a results.csv; the last one of a killed run may be cut off, and is then done again."""
    try:
        rows = list(csv.reader(store.read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise VnnlibError(f"{store} cannot be read: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error):
        rows = [[]]
    if rows and rows[0] != NAMES:
        raise VnnlibError(f"{store} is not a table of results that lipgraft wrote; choose another folder.")
    results = []
    for row in rows[1:]:
        whole = len(row) == len(NAMES) and row[4] in WORDS
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
    try:
        old = store.read_bytes() if store.exists() else b""
        with store.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not old:
                writer.writerow(NAMES)
            elif not old.endswith(b"\n"):  # the last line was cut off
                file.write("\n")
            writer.writerow([getattr(result, name) for name in NAMES])
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise VnnlibError(f"{store} cannot be written: {error.strerror or error}; what it holds is kept.") from None
