"""The stages that make models: adversarial pre-training, scoring and grafting, fine-tuning."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft import data as datasets
from lipgraft import grafting, models, training
from lipgraft.models import fingerprint
from lipgraft.runs.directory import Result, RunDirectory
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
    _scores: dict[tuple[float, int], grafting.Scores] = field(default_factory=dict)

    @cached_property
    def pretrained(self) -> nn.Module:
        """The common start: adversarially trained, BatchNorm folded into the layers before it."""
        recipe = self.recipe
        inputs = {
            "stage": "pretrain",
            "network": [recipe.network, recipe.data, recipe.activation],
            "train": to_mapping(recipe.pretrain),
            "seed": recipe.seed,
        }

        def make(scratch: Path) -> tuple[nn.Module, Result]:
            start = models.build(recipe.network, recipe.data, activation=recipe.activation, seed=recipe.seed)
            model, result = self._train(scratch, start, recipe.pretrain)
            return models.fold_batchnorm(model), result

        what = f"adversarial training of {recipe.network} on {recipe.data}, {recipe.pretrain.epochs} epochs"
        return self.run.model("pretrained", what, inputs, make, self.device)

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
            scores = self._scores_for(graft)
            masks = grafting.select(self.pretrained, scores, graft.criterion, graft.ratio, **graft.options)
            lines = grafting.chosen_lines(graft.lines, self.pretrained, self._calibration(graft)[0])
            new = grafting.apply(self.pretrained, masks, graft.slope, graft.intercept, lines=lines)
            return new, grafting.summarise(masks, scores).to_dict()

        what = f"{model.title}: grafting {graft.ratio:.0%} of the neurons by {graft.criterion}"
        return self.run.model(f"{model.name}-grafted", what, inputs, make, self.device)

    def finished(self, model: ModelRecipe) -> nn.Module:
        """The model as it is certified."""
        start = self.pretrained if model.graft is None else self.grafted(model, model.graft)
        settings = model.finetune
        if settings is None:
            return start
        inputs = {
            "stage": "finetune",
            "data": self.recipe.data,
            "from": fingerprint(start),
            "train": to_mapping(settings),
            "seed": self.recipe.seed,
        }

        def make(scratch: Path) -> tuple[nn.Module, Result]:
            return self._train(scratch, copy.deepcopy(start), settings)

        what = f"{model.title}: fine-tuning, {settings.epochs} epochs"
        return self.run.model(model.name, what, inputs, make, self.device)

    def _train(self, folder: Path, start: nn.Module, settings: training.TrainSettings) -> tuple[nn.Module, Result]:
        """Train in a folder, so that a killed run goes on with the epoch it was in."""
        done = training.train(
            start,
            self.data,
            settings,
            run_dir=folder,
            resume=True,
            device=self.device,
            seed=self.recipe.seed,
            progress=self.progress,
        )
        seconds = sum(record["seconds"] for record in done.history)
        return done.model, {"history": list(done.history), "best_epoch": done.best_epoch, "seconds": seconds}

    def _scores_for(self, graft: GraftSettings) -> grafting.Scores:
        """Scores over the calibration images, computed once; of the graft only the gain depends, on the slope."""
        recipe, settings = self.recipe, self.recipe.calibration
        x, y = self._calibration(graft)
        key = graft.slope, len(x)
        if key not in self._scores:
            self._scores[key] = grafting.score(
                self.pretrained,
                x,
                recipe.eps,
                settings.bounds,
                y=y,
                batch=settings.batch,
                slope=graft.slope,
                progress=self.progress,
            )
        return self._scores[key]

    def _calibration(self, graft: GraftSettings) -> tuple[Tensor, Tensor]:
        """The images to score with and to fit lines to, and their labels."""
        recipe = self.recipe
        size = grafting.calibration_size(recipe.network, recipe.data)
        return grafting.calibration_set(
            self.data, graft.calibration or recipe.calibration.count or size, seed=recipe.seed
        )


def history(run: RunDirectory, recipe: Recipe) -> list[dict[str, Any]]:
    """Every epoch of every finished training of the run, in order, each with its model's name."""
    names = ["pretrained", *(model.name for model in recipe.models if model.finetune is not None)]
    return [{"model": name, **record} for name in names if run.finished(name) for record in run.result(name)["history"]]
