"""The settings of `lipgraft train`, from a preset or a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lipgraft import training
from lipgraft.cli.common import read_yaml
from lipgraft.errors import SettingsError
from lipgraft.settings import build, setting, to_mapping


@dataclass(frozen=True)
class TrainRecipe:
    """One training run. The settings in `train` go on top of the preset's."""

    preset: str = setting("pretrain", f"Schedule to start from: {', '.join(training.PRESETS)}.")
    data: str = setting("cifar10", "Name of the data set, an .npz file, or module:function.")
    model: str | None = setting(
        None, "Network to train: a name, an .onnx file, or module:function; by default the one in start, else cnn-b."
    )
    activation: str = setting("relu", "Activation of that network: a name in lipgraft.activations.KINDS.")
    start: str | None = setting(None, "Checkpoint to start from, instead of random weights.")
    train: training.TrainSettings = field(
        default_factory=training.TrainSettings, metadata={"help": "Settings of the run, on top of the preset's."}
    )


def read_recipe(name: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> TrainRecipe:
    """A preset, or a YAML file whose settings go on top of the preset it names; `given` and `settings` go first."""
    if Path(name).suffix in (".yaml", ".yml"):
        mapping = dict(read_yaml(Path(name)))
        if {"models", "pretrain"} & set(mapping):
            raise SettingsError(f"{name} is not for one training: it looks like a recipe for `lipgraft run`.")
    else:
        training.preset(name)  # an unknown name is an error here, before anything is built on it
        mapping = {"preset": name}
    base = to_mapping(training.preset(str(mapping.get("preset", "pretrain"))))
    own = mapping.get("train") or {}
    if not isinstance(own, Mapping):
        raise SettingsError(f"{name}: train must be a mapping of settings.")
    return build(TrainRecipe, {**mapping, **given, "train": {**base, **own, **settings}}, where=name)
