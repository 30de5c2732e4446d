"""From the files of a finished run to the values that the table and the page show."""

from __future__ import annotations

import math
from pathlib import Path

from lipgraft.errors import SettingsError
from lipgraft.report import LayerResult, ModelResult, RunResults, published
from lipgraft.runs import database, examples
from lipgraft.runs.directory import RunDirectory
from lipgraft.runs.recipe import ModelRecipe, Recipe
from lipgraft.runs.single import collect_single, image_result
from lipgraft.settings import build, to_mapping

MEASURES = "accuracy", "certify", "bounds", "lipschitz"


def collect(path: str | Path, *, partial: bool = False) -> RunResults:
    """The results of the run in a directory, made by `lipgraft run` or by `lipgraft verify`.

    partial: the models that are finished are enough, if there is one.
    """
    run = RunDirectory(Path(path))
    config = run.read_config()
    if "recipe" not in config:
        return collect_single(run.path, config)
    recipe = build(Recipe, config["recipe"], where=str(run.config))
    chosen = [model for model in recipe.models if not partial or measured(run, model)]
    if not chosen:
        raise SettingsError(f"the run in {run.path} has no finished model; run it again to go on.")
    found = tuple(_model(run, model) for model in chosen)
    verdicts = {model.name: model.images for model in found}
    first = chosen[0].name
    whole = len(chosen) == len(recipe.models) and (not partial or run.finished("examples"))
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
            **({"lipschitz": run.result(f"{first}.lipschitz")["count"]} if found[0].lipschitz else {}),
        },
        examples=examples.read(run.examples, verdicts, run.result("examples")["classes"]) if whole else (),
        lipschitz_units=recipe.lipschitz.units,
        margin_method=recipe.certify.margins,
        settings=to_mapping(recipe),
        versions=config["versions"],
        hardware=config["hardware"],
        made=_made(run, chosen),
    )


def measured(run: RunDirectory, model: ModelRecipe) -> bool:
    """Whether all figures of a model are there."""
    return all(run.finished(f"{model.name}.{measure}") for measure in MEASURES)


def _made(run: RunDirectory, chosen: list[ModelRecipe]) -> tuple[dict[str, str], ...]:
    """Commits and devices of the stages, each once."""
    stages = [stage for model in chosen for stage in _stages(model).values()]
    stages += [f"{model.name}.{measure}" for model in chosen for measure in MEASURES]
    found = [run.made(stage) for stage in dict.fromkeys(stages)]
    return tuple(made for i, made in enumerate(found) if made and made not in found[:i])


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
        va=_number(certified["va"]),
        unr=_number(certified["unr"]),
        time=_number(certified["time"]),
        lipschitz=lipschitz["means"],
        layers=tuple(LayerResult(**layer) for layer in bounds["layers"]),
        margins=tuple(bounds["margins"]),
        images=tuple(map(image_result, database.read(run.store, model.name))),
        published=None if model.paper is None else published(model.paper),
        seconds=_seconds(run, model),
        over={
            "sa": accuracy["count"],
            "ra": accuracy["count"],
            "va": certified["count"],
            "unr": certified[
                "bounded" if "bounded" in certified else "reached"
            ],  # older runs did not tell the two apart
            "time": certified["reached"],
            "lipschitz": lipschitz["count"],
        },
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _seconds(run: RunDirectory, model: ModelRecipe) -> dict[str, float]:
    """How long each stage of a model took; a stage shared by all models counts for each."""
    return {what: float(run.result(stage)["seconds"]) for what, stage in _stages(model).items()}


def _stages(model: ModelRecipe) -> dict[str, str]:
    """The stages behind a model whose time is told, by what they do."""
    stages = {"pretrain": "pretrained", "certify": f"{model.name}.certify", "lipschitz": f"{model.name}.lipschitz"}
    if model.graft is not None:
        stages["graft"] = f"{model.name}-grafted"
    if model.finetune is not None:
        stages["finetune"] = model.name
    return stages
