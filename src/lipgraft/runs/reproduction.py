"""Reproducing a table of the paper: its runs one after another, resumable, with everything they share made once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from lipgraft.files import atomic_write_text
from lipgraft.locking import held
from lipgraft.report import ExperimentResults, RunResults, experiment_summary, markdown, published, render_experiment
from lipgraft.runs.directory import Announce, RunDirectory
from lipgraft.runs.experiment import Experiment, ExperimentRun
from lipgraft.runs.pipeline import run
from lipgraft.runs.recipe import ModelRecipe
from lipgraft.runs.results import collect, measured

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
    command: str = "",
) -> ExperimentResults:
    """Run an experiment, or go on with it, and write its results.json, table.md and report.html.

    out: a folder for all experiments; this one's is out/NAME, with a run directory for each of its runs. The table is
    written anew whenever a row is finished. command: what to call to make it again, for the table.
    """
    folder = Path(out) / experiment.name

    def finished(_: ModelRecipe) -> None:
        _write_table(folder, found(experiment, out, command))

    with held(Path(out)):  # all of it: experiments share stages
        for one in experiment.runs:
            run(
                one.recipe,
                folder / one.name,
                device=device,
                data_root=data_root,
                progress=progress,
                announce=announce,
                shared=Path(out) / SHARED,
                measured=finished,
            )
        results = found(experiment, out, command)
        _write_table(folder, results)
        atomic_write_text(folder / "report.html", render_experiment(results))
    return results


def found(experiment: Experiment, out: str | Path, command: str = "") -> ExperimentResults:
    """What is finished of an experiment."""
    runs: list[RunResults] = []
    missing: list[str] = []
    for one in experiment.runs:
        path = Path(out) / experiment.name / one.name
        absent = _absent(one, path)
        missing += [f"{one.name}/{name}" for name in absent]
        if len(absent) < len(one.recipe.models):
            literature = {title: published(key) for title, key in one.literature.items()}
            runs.append(replace(collect(path, partial=True), literature=literature))
    return ExperimentResults(
        name=experiment.name,
        title=experiment.title,
        about=experiment.about,
        scale=experiment.scale,
        command=command,
        seed=experiment.runs[0].recipe.seed,
        runs=tuple(runs),
        missing=tuple(missing),
        changes=experiment.changes,
    )


def _absent(one: ExperimentRun, path: Path) -> list[str]:
    """The rows of a run that have not all their figures."""
    directory = RunDirectory(path)
    begun = directory.holds(one.recipe)
    return [model.name for model in one.recipe.models if not (begun and measured(directory, model))]


def _write_table(folder: Path, results: ExperimentResults) -> None:
    summary = json.dumps(experiment_summary(results), indent=1, allow_nan=False)
    atomic_write_text(folder / "results.json", summary + "\n")
    atomic_write_text(folder / "table.md", markdown(results))
