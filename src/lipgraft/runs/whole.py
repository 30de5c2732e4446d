"""The whole run: make every model, measure it, certify it, report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipgraft import data as datasets
from lipgraft import models
from lipgraft.data import images
from lipgraft.files import atomic_write_text
from lipgraft.locking import held
from lipgraft.report import RunResults, render, summary
from lipgraft.runs import certifying, database, examples, measuring
from lipgraft.runs.collect import collect
from lipgraft.runs.directory import Announce, RunDirectory
from lipgraft.runs.making import Workshop, history
from lipgraft.runs.recipe import ModelRecipe, Recipe
from lipgraft.runs.shared import Shared
from lipgraft.settings import to_mapping
from lipgraft.verification.runs import identity_of


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    data_root: str | Path | None = None,
    progress: bool = False,
    announce: Announce = lambda what, done: None,
    shared: str | Path | None = None,
    measured: Callable[[ModelRecipe], None] = lambda model: None,
) -> RunResults:
    """Run a recipe in a directory, or go on with the run that is there; return what it found.

    progress: show bars for long work. announce: told what each stage does, and whether it was done before. shared: a
    folder of finished stages that several runs share. measured: told of each model when all its figures are there.
    """
    place = torch.device(device)
    directory = RunDirectory(Path(out), announce, None if shared is None else Shared(Path(shared)))
    data = datasets.load(recipe.data, root=data_root)
    with held(Path(out)), _threads(recipe.threads):
        directory.begin(recipe, place)
        _work(Workshop(recipe, directory, data.to(place), place, progress), measured)
        return report(out)


def _work(shop: Workshop, measured: Callable[[ModelRecipe], None]) -> None:
    """All stages, model by model, so that a run that is cut short has whole rows of its table."""
    recipe, directory = shop.recipe, shop.run
    networks: dict[str, nn.Module] = {}
    for model in recipe.models:
        networks[model.name] = shop.finished(model)
        _measure(shop, model, networks[model.name])
        measured(model)
    records = (json.dumps(record) + "\n" for record in history(directory, recipe))
    atomic_write_text(directory.path / "metrics.jsonl", "".join(records))
    _examples(shop, networks)
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
    """(Re)build results.json and report.html from what the run in a directory found."""
    results = collect(path)
    atomic_write_text(Path(path) / "results.json", json.dumps(summary(results), indent=2, allow_nan=False) + "\n")
    atomic_write_text(Path(path) / "report.html", render(results))
    return results


def _measure(shop: Workshop, model: ModelRecipe, network: nn.Module) -> None:
    """Everything the report says of one model."""
    recipe, run, data = shop.recipe, shop.run, shop.data
    known = {**_identity(shop, network), "seed": recipe.seed}
    run.stage(
        f"{model.name}.accuracy",
        f"{model.title}: accuracy, clean and attacked",
        {"stage": "accuracy", **known, "attack": to_mapping(recipe.attack)},
        lambda _: measuring.accuracies(network, data, recipe.eps, recipe.attack, recipe.seed),
    )
    run.stage(
        f"{model.name}.certify",
        f"{model.title}: certifying {recipe.certify.count} images",
        {"stage": "certify", **known, "certify": to_mapping(recipe.certify)},
        lambda folder: certifying.certify(shop, model, network, folder),
        certifying.verdicts(shop, model),
    )
    run.stage(
        f"{model.name}.bounds",
        f"{model.title}: unstable neurons and margins",
        {"stage": "bounds", **known, "certify": to_mapping(recipe.certify)},
        lambda _: _bounds(shop, model, network),
    )
    run.stage(
        f"{model.name}.lipschitz",
        f"{model.title}: Lipschitz constants",
        {"stage": "lipschitz", **known, "lipschitz": to_mapping(recipe.lipschitz)},
        lambda _: measuring.lipschitz_constants(
            network, data, recipe.eps, recipe.lipschitz, recipe.seed, shop.progress
        ),
    )


def _identity(shop: Workshop, network: nn.Module) -> dict[str, str]:
    """What every measure of a network depends on; the settings of each come on top."""
    recipe = shop.recipe
    parts = identity_of(network, shop.data, recipe.eps, recipe.certify.verifier).texts()
    return {key: value for key, value in parts.items() if key != "settings"}


def _bounds(shop: Workshop, model: ModelRecipe, network: nn.Module) -> dict[str, Any]:
    """Unstable neurons over the images that reach the verifier, margins over those classified correctly."""
    recipe, data = shop.recipe, shop.data
    x, y = images(data.x_test[: recipe.certify.count]), data.y_test[: recipe.certify.count]
    rows = database.read(shop.run.store, model.name)
    reached = x[[row.image for row in rows if row.verdict.reached_verifier]]
    layers = measuring.unstable_shares(network, reached, recipe.eps)
    if model.graft is not None:
        start = models.load(shop.run.checkpoint(f"{model.name}-grafted"), shop.device)
        before = measuring.unstable_shares(start, reached, recipe.eps)
        layers = [{**layer, "unr_grafted": old["unr"]} for layer, old in zip(layers, before, strict=True)]
    return {"layers": layers, "margins": measuring.margins(network, x, y, recipe.eps, recipe.certify.margins)}


def _examples(shop: Workshop, networks: dict[str, nn.Module]) -> None:
    recipe, run = shop.recipe, shop.run

    def work(_: Path) -> dict[str, Any]:
        verdicts = {name: database.read(run.store, name) for name in networks}
        chosen = examples.choose(verdicts, recipe.examples)
        examples.save(run.examples, shop.data, chosen, networks, verdicts)
        return {"images": chosen, "classes": list(shop.data.classes)}

    marks = {name: _identity(shop, network) for name, network in networks.items()}
    inputs = {"models": marks, "certify": to_mapping(recipe.certify), "examples": recipe.examples}
    run.stage("examples", "images to look at", inputs, work, share=False)
