"""The stages that make models: adversarial or certified pre-training, scoring and grafting, fine-tuning."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipgraft import data as datasets
from lipgraft import grafting, models, training
from lipgraft.errors import counted
from lipgraft.models import fingerprint
from lipgraft.progress import bar
from lipgraft.runs.directory import Result, RunDirectory
from lipgraft.runs.fingerprint import images_fingerprint
from lipgraft.runs.recipe import GraftSettings, ModelRecipe, Recipe
from lipgraft.settings import to_mapping


@dataclass(frozen=True, eq=False)
class Workshop:
    """What every stage needs: the recipe, the run's files, the data on the device."""

    recipe: Recipe
    run: RunDirectory
    data: datasets.Dataset
    device: torch.device
    progress: bool = False
    _scores: dict[tuple[float, int | None], grafting.Scores] = field(default_factory=dict)

    @cached_property
    def pretrained(self) -> nn.Module:
        """The common start: trained, BatchNorm folded into the layers before it."""
        recipe = self.recipe
        chosen = [] if recipe.batchnorm is None else [recipe.batchnorm]
        inputs = {
            "stage": "pretrain",
            "network": [recipe.network, recipe.data, recipe.activation, *chosen],
            "train": recipe.pretrain.record(),
            "seed": recipe.seed,
        }
        # A name that lipgraft knows stays the same thing; what is behind the name of a file or function may change.
        if datasets.is_own(recipe.data):
            inputs["images"] = images_fingerprint(self.data.x_train, self.data.y_train)
        if models.is_own(recipe.network):
            inputs["weights"] = fingerprint(self._start())

        def make(scratch: Path) -> tuple[nn.Module, Result]:
            model, result = self._train(scratch, self._start(), recipe.pretrain)
            return models.folded(model, self.data), result

        kind = "certified" if training.OBJECTIVES[recipe.pretrain.objective].bounds else "adversarial"
        what = f"{kind} training of {recipe.network} on {recipe.data}, {counted(recipe.pretrain.epochs, 'epoch')}"
        return self.run.model("pretrained", what, inputs, make, self.device, self.data.input_shape)

    def _start(self) -> nn.Module:
        recipe = self.recipe
        return models.start(
            recipe.network, self.data, activation=recipe.activation, batchnorm=recipe.batchnorm, seed=recipe.seed
        )

    def grafted(self, model: ModelRecipe, graft: GraftSettings) -> nn.Module:
        """The start of a grafted model, before fine-tuning."""
        inputs = {
            "stage": "graft",
            "data": self.recipe.data,
            "from": fingerprint(self.pretrained),
            "graft": to_mapping(graft),
            "calibration": to_mapping(self.recipe.calibration),
            "eps": self.recipe.eps,
            "seed": self.recipe.seed,
        }

        def make(scratch: Path) -> tuple[nn.Module, Result]:
            plan = self._plan(graft)
            return plan.apply(self.pretrained), plan.summary.to_dict()

        what = f"{model.title}: grafting {graft.ratio:.0%} of the neurons by {graft.criterion}"
        return self.run.model(f"{model.name}-grafted", what, inputs, make, self.device, self.data.input_shape)

    def finished(self, model: ModelRecipe) -> nn.Module:
        """The model as it is certified."""
        if model.network is not None:
            return self._given(model, model.network)
        start = self.pretrained if model.graft is None else self.grafted(model, model.graft)
        settings = model.finetune
        if settings is None:
            return start
        inputs = {
            "stage": "finetune",
            "data": self.recipe.data,
            "from": fingerprint(start),
            "train": settings.record(),
            "seed": self.recipe.seed,
        }

        def make(scratch: Path) -> tuple[nn.Module, Result]:
            return self._train(scratch, copy.deepcopy(start), settings)

        what = f"{model.title}: fine-tuning, {counted(settings.epochs, 'epoch')}"
        return self.run.model(model.name, what, inputs, make, self.device, self.data.input_shape)

    def _given(self, model: ModelRecipe, network: str) -> nn.Module:
        """A network that is there already."""
        given = models.start(network, self.data, seed=self.recipe.seed).eval()
        inputs = {"stage": "given", "data": self.recipe.data, "weights": fingerprint(given)}
        what = f"{model.title}: {network}"
        return self.run.model(model.name, what, inputs, lambda _: (given, {}), self.device, self.data.input_shape)

    def _train(self, folder: Path, start: nn.Module, settings: training.TrainSettings) -> tuple[nn.Module, Result]:
        """Train in a folder, so that a killed run goes on with the epoch it was in."""
        with bar("training", show=self.progress, keep=True) as progress:
            done = training.train(
                start,
                self.data,
                settings,
                run_dir=folder,
                resume=True,
                device=self.device,
                seed=self.recipe.seed,
                progress=progress,
            )
        seconds = sum(record["seconds"] for record in done.history)
        return done.model, {"history": list(done.history), "best_epoch": done.best_epoch, "seconds": seconds}

    def _plan(self, graft: GraftSettings) -> grafting.Plan:
        """What becomes a line. Scores are computed once: of the graft only the gain depends, on the slope."""
        recipe, settings = self.recipe, self.recipe.calibration
        count = graft.calibration or settings.count
        key = graft.slope, count
        with bar("scoring neurons", show=self.progress) as progress:
            plan = grafting.plan(
                self.pretrained,
                self.data,
                recipe.eps,
                criterion=graft.criterion,
                ratio=graft.ratio,
                options=graft.options,
                lines=graft.lines,
                slope=graft.slope,
                intercept=graft.intercept,
                count=count,
                bounds=settings.bounds,
                batch=settings.batch,
                seed=recipe.seed,
                scores=self._scores.get(key),
                progress=progress,
            )
        self._scores[key] = plan.scores
        return plan


def history(run: RunDirectory, recipe: Recipe) -> list[dict[str, Any]]:
    """Every epoch of every finished training of the run, in order, each with its model's name."""
    names = ["pretrained", *(model.name for model in recipe.models if model.finetune is not None)]
    return [{"model": name, **record} for name in names if run.finished(name) for record in run.result(name)["history"]]
