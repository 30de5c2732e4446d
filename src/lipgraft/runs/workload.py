"""How much work experiments are, what they share counted once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lipgraft.runs.experiment import Experiment
from lipgraft.runs.recipe import ModelRecipe, Recipe
from lipgraft.settings import to_mapping


@dataclass(frozen=True)
class Workload:
    """models: rows that differ; images: proofs, over all models."""

    pretrainings: int
    finetunings: int
    epochs: int
    models: int
    images: int


def workload(experiments: Iterable[Experiment]) -> Workload:
    """The work of several experiments that run in one folder, if nothing is there yet."""
    starts: dict[str, int] = {}
    tuned: dict[str, int] = {}
    certified: dict[str, int] = {}
    for recipe in (run.recipe for experiment in experiments for run in experiment.runs):
        network = recipe.network, recipe.data, recipe.activation, recipe.batchnorm
        start = _key(*network, recipe.seed, to_mapping(recipe.pretrain))
        if any(model.network is None for model in recipe.models):
            starts[start] = recipe.pretrain.epochs
        for model in recipe.models:
            made = _key(start, _made(recipe, model)) if model.network is None else model.network
            if model.finetune is not None:
                tuned[made] = model.finetune.epochs
            certified[_key(made, recipe.eps, to_mapping(recipe.certify))] = recipe.certify.count
    epochs = sum(starts.values()) + sum(tuned.values())
    return Workload(len(starts), len(tuned), epochs, len(certified), sum(certified.values()))


def _made(recipe: Recipe, model: ModelRecipe) -> Any:
    """What decides the weights of a model."""
    if model.graft is None and model.finetune is None:
        return None
    graft = None if model.graft is None else [to_mapping(model.graft), to_mapping(recipe.calibration), recipe.eps]
    return [graft, None if model.finetune is None else to_mapping(model.finetune)]


def _key(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True)
