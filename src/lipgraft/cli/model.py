"""A checkpoint together with the data it is to be used on."""

from __future__ import annotations

import os

import torch
from torch import nn

from lipgraft import models
from lipgraft.data import Dataset
from lipgraft.errors import SettingsError
from lipgraft.models.classifier import ModelSpec


def load_model(path: str | os.PathLike[str], data: Dataset, device: torch.device | None = None) -> nn.Module:
    """The model in a checkpoint; one that was made for other images or classes is refused."""
    model = models.load(path, device)
    spec = getattr(model, "spec", None)
    if isinstance(spec, ModelSpec):
        made, given = (tuple(spec.input_shape), spec.classes), (data.input_shape, len(data.classes))
        if made != given:
            raise SettingsError(
                f"{path} is a {spec.name} for {spec.dataset}, {_describe(*made)}, but {data.name} has "
                f"{_describe(*given)}; give the data set that it was trained on with --data."
            )
    return model


def _describe(shape: tuple[int, ...], classes: int) -> str:
    return f"images of {'x'.join(map(str, shape))} in {classes} classes"
