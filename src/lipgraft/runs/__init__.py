"""Runs: recipes and experiments, their stages, the results store, provenance and progress."""

from lipgraft.runs.certification import verify_run
from lipgraft.runs.experiment import SCALES, Experiment, chosen, experiment_names, load_experiment, with_networks
from lipgraft.runs.fingerprint import Identity
from lipgraft.runs.overview import write_overview
from lipgraft.runs.pipeline import report, run
from lipgraft.runs.recipe import (
    AttackSettings,
    CalibrationSettings,
    CertifySettings,
    GraftSettings,
    LipschitzRecipe,
    ModelRecipe,
    Recipe,
    explain,
)
from lipgraft.runs.recipe_file import load_recipe, recipe_names, resolve
from lipgraft.runs.reproduction import reproduce
from lipgraft.runs.results import collect
from lipgraft.runs.store import RESULTS, ResultStore, Row, StoreError, read_results
from lipgraft.runs.workload import Workload, workload

__all__ = [
    "RESULTS",
    "SCALES",
    "AttackSettings",
    "CalibrationSettings",
    "CertifySettings",
    "Experiment",
    "GraftSettings",
    "Identity",
    "LipschitzRecipe",
    "ModelRecipe",
    "Recipe",
    "ResultStore",
    "Row",
    "StoreError",
    "Workload",
    "chosen",
    "collect",
    "experiment_names",
    "explain",
    "load_experiment",
    "load_recipe",
    "read_results",
    "recipe_names",
    "report",
    "reproduce",
    "resolve",
    "run",
    "verify_run",
    "with_networks",
    "workload",
    "write_overview",
]
