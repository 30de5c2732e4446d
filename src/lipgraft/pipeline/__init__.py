"""The whole run, from a recipe to a report: pre-train, graft, fine-tune, certify, compare."""

from lipgraft.pipeline.collect import collect
from lipgraft.pipeline.experiment import SCALES, Experiment, chosen, experiment_names, load_experiment
from lipgraft.pipeline.explain import explain
from lipgraft.pipeline.loading import load_recipe, recipe_names, resolve
from lipgraft.pipeline.recipe import (
    AttackSettings,
    CalibrationSettings,
    CertifySettings,
    GraftSettings,
    LipschitzRecipe,
    ModelRecipe,
    Recipe,
)
from lipgraft.pipeline.reproduce import reproduce
from lipgraft.pipeline.whole import report, run
from lipgraft.pipeline.work import Work, work

__all__ = [
    "SCALES",
    "AttackSettings",
    "CalibrationSettings",
    "CertifySettings",
    "Experiment",
    "GraftSettings",
    "LipschitzRecipe",
    "ModelRecipe",
    "Recipe",
    "Work",
    "chosen",
    "collect",
    "experiment_names",
    "explain",
    "load_experiment",
    "load_recipe",
    "recipe_names",
    "report",
    "reproduce",
    "resolve",
    "run",
    "work",
]
