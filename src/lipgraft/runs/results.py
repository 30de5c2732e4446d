"""From the files of a finished run to the values that the table and the page show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lipgraft.errors import SettingsError
from lipgraft.report import ImageResult, LayerResult, ModelResult, RunResults, published
from lipgraft.runs import examples
from lipgraft.runs.directory import RunDirectory
from lipgraft.runs.recipe import ModelRecipe, Recipe
from lipgraft.runs.store import RESULTS, Row, read_model, read_results
from lipgraft.settings import build, to_mapping
from lipgraft.verification import measure

MEASURES = "accuracy", "certify", "bounds", "lipschitz"


def collect(path: str | Path, *, partial: bool = False) -> RunResults:
    """The results of the run in a directory, made by `lipgraft run` or by `lipgraft verify`.

    partial: the models that are finished are enough, if there is one.
    """
    run = RunDirectory(Path(path))
    config = run.read_config()
    if "recipe" not in config:
        return _verification(run.path, config)
    recipe = build(Recipe, config["recipe"], where=str(run.config))
    chosen = [model for model in recipe.models if not partial or is_measured(run, model)]
    if not chosen:
        raise SettingsError(f"the run in {run.path} has no finished model; run it again to continue.")
    found = tuple(_model(run, model) for model in chosen)
    verdicts = {model.name: model.images for model in found}
    first = chosen[0].name
    whole = len(chosen) == len(recipe.models) and (not partial or run.finished("examples"))
    classes = tuple(run.result("examples")["classes"]) if whole else ()
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
        examples=examples.read(run.examples, verdicts, classes) if whole else (),
        classes=classes,
        lipschitz_units=recipe.lipschitz.units,
        margin_method=recipe.certify.margins,
        settings=to_mapping(recipe),
        versions=config["versions"],
        hardware=config["hardware"],
        missing=tuple(model.name for model in recipe.models if model not in chosen),
        made=_made(run, chosen),
    )


def is_measured(run: RunDirectory, model: ModelRecipe) -> bool:
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
        images=tuple(map(_image, read_model(run.store, model.name))),
        published=None if model.paper is None else published(model.paper),
        proofs=certified.get("proofs"),
        paper=model.paper,
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
        made=_made(run, [model]),
    )


def _verification(path: Path, config: Mapping[str, Any]) -> RunResults:
    """The results of `lipgraft verify`: one model, as far as its verdicts go. config: that of its config.yaml."""
    rows = read_results(path / RESULTS)
    found = measure([row.verdict for row in rows])
    name = Path(config["checkpoint"]).stem
    model = ModelResult(
        name=name,
        title=name,
        sa=_number(found.sa),
        ra=_number(found.ra),
        va=_number(found.va),
        unr=_number(found.unr),
        time=_number(found.time),
        lipschitz={},
        images=tuple(map(_image, rows)),
        over=found.over,
    )
    return RunResults(
        name=name,
        title=f"{name} on {config['data']}",
        data=config["data"],
        network=config["checkpoint"],
        eps=config["eps"],
        models=(model,),
        counts={"certified": len(rows)},
        settings=config["verify"],
        versions=config["versions"],
        hardware=config.get("hardware", {}),
    )


def _image(row: Row) -> ImageResult:
    v = row.verdict
    return ImageResult(row.image, row.label, v.status, v.method, v.seconds, v.reason, v.margin, v.ended)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _seconds(run: RunDirectory, model: ModelRecipe) -> dict[str, float]:
    """How long each stage of a model took; a stage shared by all models counts for each."""
    return {what: float(run.result(stage)["seconds"]) for what, stage in _stages(model).items()}


def _stages(model: ModelRecipe) -> dict[str, str]:
    """The stages behind a model whose time is told, by what they do."""
    stages = {} if model.network is not None else {"pretrain": "pretrained"}
    stages |= {"certify": f"{model.name}.certify", "lipschitz": f"{model.name}.lipschitz"}
    if model.graft is not None:
        stages["graft"] = f"{model.name}-grafted"
    if model.finetune is not None:
        stages["finetune"] = model.name
    return stages
