"""Reproducing a table of the paper: its runs one after another, resumable, with everything they share made once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from lipgraft.files import atomic_write_text
from lipgraft.locking import held
from lipgraft.report import ExperimentResults, RunResults, experiment_summary, markdown, published, render_experiment
from lipgraft.runs.directory import Announce, RunDirectory
from lipgraft.runs.experiment import FULL, Experiment, ExperimentRun
from lipgraft.runs.pipeline import run
from lipgraft.runs.recipe import ModelRecipe
from lipgraft.runs.results import collect, is_measured

SHARED = "shared"
"""The folder, beside those of the experiments, of the stages that they share."""


def reproduce(
    experiment: Experiment,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    data_root: str | Path | None = None,
    progress: bool = False,
    announce: Announce = lambda what, done: None,
) -> ExperimentResults:
    """Run the rows of an experiment that were asked for, or go on with them; write results.json, table.md, report.html.

    out: a folder for all experiments; this one's is out/NAME, or out/NAME-seed1 with another seed than 0, with a run
    directory for each of its runs. The table is written anew whenever a row is finished, and holds every finished row
    of the experiment with the same settings, whenever it was asked for.
    """
    folder = Path(out) / experiment.folder
    with held(Path(out)):  # all of it: experiments share stages
        parts = [_part(one, folder / one.name) for one in experiment.runs]

        def write(place: int, _: ModelRecipe | None = None) -> None:
            """The table anew, with one run read again: the files of the others have not changed."""
            one = experiment.runs[place]
            parts[place] = _part(one, folder / one.name)
            _write_table(folder, _together(experiment, parts))

        for place, one in enumerate(experiment.runs):
            if one.asked:
                run(
                    one.recipe,
                    folder / one.name,
                    device=device,
                    data_root=data_root,
                    progress=progress,
                    announce=announce,
                    shared=Path(out) / SHARED,
                    rows=one.asked,
                    measured=partial(write, place),
                )
                write(place)
        results = _together(experiment, parts)
        atomic_write_text(folder / "report.html", render_experiment(results))
    return results


def found(experiment: Experiment, out: str | Path) -> ExperimentResults:
    """What is finished of an experiment."""
    folder = Path(out) / experiment.folder
    return _together(experiment, [_part(one, folder / one.name) for one in experiment.runs])


@dataclass(frozen=True)
class _Part:
    """What is finished of one run. missing: rows asked for that are not. unasked: rows from before. results: if any."""

    missing: tuple[str, ...]
    unasked: tuple[str, ...]
    results: RunResults | None


def _part(one: ExperimentRun, path: Path) -> _Part:
    done = _finished(one, path)
    literature = {title: published(key) for title, key in one.literature.items()}
    return _Part(
        tuple(f"{one.name}/{name}" for name in one.asked if name not in done),
        tuple(f"{one.name}/{name}" for name in done if name not in one.asked),
        replace(collect(path, partial=True), literature=literature) if done else None,
    )


def _together(experiment: Experiment, parts: Sequence[_Part]) -> ExperimentResults:
    return ExperimentResults(
        name=experiment.name,
        title=experiment.title,
        about=experiment.about,
        scale=experiment.scale,
        command=_command(experiment, [name for part in parts for name in part.unasked]),
        seed=experiment.seed,
        runs=tuple(part.results for part in parts if part.results is not None),
        missing=tuple(name for part in parts for name in part.missing),
        changes={**experiment.changes, **{f"{row}.network": file for row, file in experiment.networks.items()}},
    )


def _finished(one: ExperimentRun, path: Path) -> list[str]:
    """The rows of a run that have all their figures, asked for now or before."""
    directory = RunDirectory(path)
    models = one.recipe.models if directory.holds(one.recipe) else ()
    return [model.name for model in models if is_measured(directory, model)]


def _command(experiment: Experiment, unasked: Sequence[str]) -> str:
    """The line that makes this table again, wherever the data and the results are. unasked: rows from before."""
    parts = ["lipgraft", "reproduce", experiment.name]
    parts += ["--scale", experiment.scale] if experiment.scale != FULL else []
    rows = sum(len(one.recipe.models) for one in experiment.runs)
    if sum(len(one.asked) for one in experiment.runs) + len(unasked) < rows:
        for name in (*experiment.only, *unasked):
            parts += ["--only", name]
    for key, value in experiment.changes.items():
        parts += ["--set", f"{key}={value}"]
    for row, file in experiment.networks.items():
        parts += ["--network", f"{row}={file}"]
    return shlex.join(parts)


def _write_table(folder: Path, results: ExperimentResults) -> None:
    summary = json.dumps(experiment_summary(results), indent=1, allow_nan=False)
    atomic_write_text(folder / "results.json", summary + "\n")
    atomic_write_text(folder / "table.md", markdown(results))
