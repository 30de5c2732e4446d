"""What other verifiers answered at the competition: the tables of a results repository."""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lipgraft.errors import SettingsError

TOOLS = {
    "alpha-beta-CROWN": ("alpha_beta_crown", "a-b-CROWN"),
    "NeuralSAT": ("neuralsat",),
    "nnenum": ("nnenum",),
    "PyRAT": ("pyrat",),
}
"""The verifiers whose agreement counts as the truth, and how their folders and files are called."""
WORDS = {"sat": "sat", "violated": "sat", "unsat": "unsat", "holds": "unsat"}

Question = tuple[str, str, str]
"""(benchmark, network, property), both files as seen from the benchmark's folder, without .gz."""


@dataclass(frozen=True)
class Answer:
    """status: "sat" or "unsat", or None where the tool did not decide. seconds: with the tool's start-up."""

    status: str | None
    seconds: float


@dataclass(frozen=True)
class Published:
    """The answers of one tool. overhead: the least seconds of any answer, which is what its start-up takes."""

    tool: str
    answers: Mapping[Question, Answer]

    @property
    def overhead(self) -> float:
        return min((answer.seconds for answer in self.answers.values() if answer.status), default=0.0)


def question(benchmark: str, network: str, spec: str) -> Question:
    """The same for the same instance, however a table writes its paths."""
    return benchmark, _inside(benchmark, network), _inside(benchmark, spec)


def _inside(benchmark: str, path: str) -> str:
    path = posixpath.normpath(path.strip().removesuffix(".gz"))
    _, found, rest = f"/{path}".rpartition(f"/{benchmark}/")
    return rest if found else path


def read_published(folder: Path) -> list[Published]:
    """The tools' tables in a results repository: TOOL/results.csv, or results_csv/TOOL.csv as in 2021."""
    found = []
    for tool, names in TOOLS.items():
        places = [
            path for name in names for path in (folder / name / "results.csv", folder / "results_csv" / f"{name}.csv")
        ]
        table = next((path for path in places if path.is_file()), None)
        if table is not None:
            found.append(Published(tool, _read(table)))
    if not found:
        raise SettingsError(f"{folder} has no results of {', '.join(TOOLS)}; give the folder of a results repository.")
    return found


def _read(table: Path) -> dict[Question, Answer]:
    """Lines of benchmark, network, property, seconds to prepare, word, seconds."""
    answers: dict[Question, Answer] = {}
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            if len(row) >= 6:
                answers[question(row[0], row[1], row[2])] = Answer(WORDS.get(row[4].lower()), _seconds(row[5]))
    return answers


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def truth(answers: Iterable[Answer | None]) -> str | None:
    """What all tools that decided agree on: "sat" or "unsat", "disputed", or None where none decided."""
    words = {answer.status for answer in answers if answer is not None and answer.status is not None}
    return words.pop() if len(words) == 1 else "disputed" if words else None
