"""How far a run is, from its files alone: nothing is locked, so that the run itself never notices."""

from __future__ import annotations

import json
from pathlib import Path

from lipgraft.errors import SettingsError, counted
from lipgraft.runs.store import RESULTS, count_statuses

METRICS = "metrics.jsonl"


def look(run: Path) -> list[str]:
    """A line for each part of the run that has got anywhere: trainings, verifications, finished stages."""
    if not run.is_dir():
        raise SettingsError(f"there is no run in {run}; give the folder that train, verify or run writes to.")
    places = [run, *sorted(place for place in (run / "unfinished").glob("*") if place.is_dir())]
    lines = [line for place in places for line in (_training(place), _verification(place)) if line is not None]
    stages = list((run / "stages").glob("*.json"))
    return lines + ([f"{counted(len(stages), 'stage')} finished"] if stages else [])


def _training(place: Path) -> str | None:
    """The last epoch; a line that is being written is left for the next look."""
    file = place / METRICS
    whole = file.read_text(encoding="utf-8").rpartition("\n")[0] if file.is_file() else ""
    if not whole:
        return None
    record = json.loads(whole.splitlines()[-1])
    shares = "".join(f", {name.upper()} {record[name]:.1%}" for name in ("sa", "ra") if name in record)
    return f"{place.name}: epoch {record['epoch']:.0f}, loss {record['loss']:.4g}{shares}"


def _verification(place: Path) -> str | None:
    file = place / RESULTS
    counts = count_statuses(file) if file.is_file() else {}
    if not counts:
        return None
    each = ", ".join(f"{status} {count}" for status, count in sorted(counts.items()))
    return f"{place.name}: {counted(sum(counts.values()), 'image')}, {each}"
