"""The whole run, from a recipe to a report: pre-train, graft, fine-tune, certify, compare."""

from lipgraft.pipeline.collect import collect
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
from lipgraft.pipeline.whole import report, run

__all__ = [
    "AttackSettings",
    "CalibrationSettings",
    "CertifySettings",
    "GraftSettings",
    "LipschitzRecipe",
    "ModelRecipe",
    "Recipe",
    "collect",
    "explain",
    "load_recipe",
    "recipe_names",
    "report",
    "resolve",
    "run",
]
