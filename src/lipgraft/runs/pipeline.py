"""The whole run: make every model, measure it, certify it, report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipgraft import data as datasets
from lipgraft.files import atomic_write_text
from lipgraft.locking import held
from lipgraft.report import RunResults, render, summary
from lipgraft.runs import examples
from lipgraft.runs.directory import Announce, RunDirectory, SharedStages
from lipgraft.runs.models import Workshop, history
from lipgraft.runs.recipe import HELD_OUT, ModelRecipe, Recipe
from lipgraft.runs.results import collect, is_measured
from lipgraft.runs.stages import identity, measure_model
from lipgraft.runs.store import read_model


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    data_root: str | Path | None = None,
    progress: bool = False,
    announce: Announce = lambda what, done: None,
    shared: str | Path | None = None,
    rows: Collection[str] | None = None,
    measured: Callable[[ModelRecipe], None] = lambda model: None,
) -> RunResults:
    """Run a recipe in a directory, or go on with the run that is there; return what it found.

    progress: show bars for long work. announce: told what each stage does, and whether it was done before. shared: a
    folder of finished stages that several runs share. rows: names of the models to make and measure, by default all;
    what is finished of the others stays. measured: told of each model when all its figures are there.
    """
    place = torch.device(device)
    directory = RunDirectory(Path(out), announce, None if shared is None else SharedStages(Path(shared)))
    data = datasets.load(recipe.data, root=data_root)
    data = held_out_images(recipe, data) if recipe.measured_on == HELD_OUT else data
    with held(Path(out)), _threads(recipe.threads):
        directory.begin(recipe, place)
        _run_stages(Workshop(recipe, directory, data.to(place), place, progress), rows, measured)
        return report(out)


def held_out_images(recipe: Recipe, data: datasets.Dataset) -> datasets.Dataset:
    """The data set with training images that no stage of the recipe learns from in place of the test images."""
    trainings = [recipe.pretrain, *(model.finetune for model in recipe.models if model.finetune is not None)]
    own = [one.held_out for one in trainings if one.held_out is not None]
    return data.holding_out(min([data.val_size, *own])).held_out().holding_out(data.val_size)


def _run_stages(shop: Workshop, rows: Collection[str] | None, measured: Callable[[ModelRecipe], None]) -> None:
    """All stages, model by model, so that a run that is cut short has whole rows of its table."""
    recipe, directory = shop.recipe, shop.run
    networks: dict[str, nn.Module] = {}
    for model in (model for model in recipe.models if rows is None or model.name in rows):
        networks[model.name] = shop.finished(model)
        measure_model(shop, model, networks[model.name])
        measured(model)
    records = (json.dumps(record) + "\n" for record in history(directory, recipe))
    atomic_write_text(directory.path / "metrics.jsonl", "".join(records))
    if all(is_measured(directory, model) for model in recipe.models):
        missing = (model for model in recipe.models if model.name not in networks)
        networks |= {model.name: shop.finished(model) for model in missing}
        _examples(shop, {model.name: networks[model.name] for model in recipe.models})
    shutil.rmtree(directory.path / "unfinished", ignore_errors=True)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many CPU threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def report(path: str | Path) -> RunResults:
    """(Re)build results.json and report.html from what the run in a directory found; one finished model is enough."""
    results = collect(path, partial=True)
    atomic_write_text(Path(path) / "results.json", json.dumps(summary(results), indent=2, allow_nan=False) + "\n")
    atomic_write_text(Path(path) / "report.html", render(results))
    return results


def _examples(shop: Workshop, networks: dict[str, nn.Module]) -> None:
    recipe, run = shop.recipe, shop.run

    def work(_: Path) -> dict[str, Any]:
        verdicts = {name: read_model(run.store, name) for name in networks}
        chosen = examples.choose(verdicts, recipe.examples)
        examples.save(run.examples, shop.data, chosen, networks, verdicts)
        return {"images": chosen, "classes": list(shop.data.classes)}

    marks = {name: identity(shop, network) for name, network in networks.items()}
    inputs = {"models": marks, "certify": recipe.certify.record(), "examples": recipe.examples}
    if not examples.are_there(run.examples):
        run.forget("examples")
    run.stage("examples", "images to look at", inputs, work, share=False)
