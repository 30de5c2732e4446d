"""From the files of a finished run to the values that the table and the page show."""

from __future__ import annotations

import math
from pathlib import Path

from lipgraft.pipeline import database, examples
from lipgraft.pipeline.directory import RunDirectory
from lipgraft.pipeline.recipe import ModelRecipe, Recipe
from lipgraft.pipeline.single import collect_single, image_result
from lipgraft.report import LayerResult, ModelResult, RunResults, published
from lipgraft.settings import build, to_mapping


def collect(path: str | Path) -> RunResults:
    """The results of the run in a directory, made by `lipgraft run` or by `lipgraft verify`."""
    run = RunDirectory(Path(path))
    config = run.read_config()
    if "recipe" not in config:
        return collect_single(run.path, config)
    recipe = build(Recipe, config["recipe"], where=str(run.config))
    found = tuple(_model(run, model) for model in recipe.models)
    verdicts = {model.name: model.images for model in found}
    first = recipe.models[0].name
    return RunResults(
        name=recipe.name,
        title=recipe.title,
        data=recipe.data,
        network=recipe.network if recipe.activation == "relu" else f"{recipe.network}, {recipe.activation}",
        eps=recipe.eps,
        models=found,
        counts={
            "tested": run.result(f"{first}.accuracy")["count"],
            "certified": len(found[0].images),
            "lipschitz": run.result(f"{first}.lipschitz")["count"],
        },
        examples=examples.read(run.examples, verdicts, run.result("examples")["classes"]),
        lipschitz_units=recipe.lipschitz.units,
        margin_method=recipe.certify.margins,
        settings=to_mapping(recipe),
        versions=config["versions"],
        hardware=config["hardware"],
    )


def _model(run: RunDirectory, model: ModelRecipe) -> ModelResult:
    accuracy = run.result(f"{model.name}.accuracy")
    certified = run.result(f"{model.name}.certify")
    bounds = run.result(f"{model.name}.bounds")
    lipschitz = run.result(f"{model.name}.lipschitz")
    return ModelResult(
        name=model.name,
        title=model.title,
        sa=accuracy["sa"],
        ra=accuracy["ra"],
        va=certified["va"],
        unr=_number(certified["unr"]),
        time=_number(certified["time"]),
        lipschitz=lipschitz["means"],
        layers=tuple(LayerResult(**layer) for layer in bounds["layers"]),
        margins=tuple(bounds["margins"]),
        images=tuple(map(image_result, database.read(run.store, model.name))),
        published=None if model.paper is None else published(model.paper),
        seconds=_seconds(run, model),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _seconds(run: RunDirectory, model: ModelRecipe) -> dict[str, float]:
    """How long each stage of a model took; a stage shared by all models counts for each."""
    stages = {"pretrain": "pretrained", "certify": f"{model.name}.certify", "lipschitz": f"{model.name}.lipschitz"}
    if model.graft is not None:
        stages["graft"] = f"{model.name}-grafted"
    if model.finetune is not None:
        stages["finetune"] = model.name
    return {what: float(run.result(stage)["seconds"]) for what, stage in stages.items()}
