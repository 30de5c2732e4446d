"""A checkpoint together with the data it is to be used on."""

from __future__ import annotations

import os

import torch
from torch import nn

from lipgraft import models
from lipgraft.data import Dataset


def load_model(path: str | os.PathLike[str], data: Dataset, device: torch.device | None = None) -> nn.Module:
    """The model in a file, of the zoo or made by a function; one that does not fit the data is refused."""
    model = models.fitting(models.load(path), data, os.fspath(path))
    return model if device is None else model.to(device)
