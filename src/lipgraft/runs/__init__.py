"""The whole run, from a recipe to a report: pre-train, graft, fine-tune, certify, compare."""

from lipgraft.runs.collect import collect
from lipgraft.runs.experiment import SCALES, Experiment, chosen, experiment_names, load_experiment
from lipgraft.runs.explain import explain
from lipgraft.runs.loading import load_recipe, recipe_names, resolve
from lipgraft.runs.recipe import (
    AttackSettings,
    CalibrationSettings,
    CertifySettings,
    GraftSettings,
    LipschitzRecipe,
    ModelRecipe,
    Recipe,
)
from lipgraft.runs.reproduce import reproduce
from lipgraft.runs.whole import report, run
from lipgraft.runs.work import Work, work

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
