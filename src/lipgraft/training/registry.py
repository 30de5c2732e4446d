"""Objectives and regularisers by name, and what a step hands them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.network.graph import Network
from lipgraft.training.settings import TrainSettings


@dataclass(frozen=True, eq=False)
class Batch:
    """x: (B, C, H, W) in [0, 1], augmented; y: (B,); index: (B,), positions among the training images."""

    x: Tensor
    y: Tensor
    index: Tensor


@dataclass(frozen=True, eq=False)
class Task:
    """What stays the same from step to step.

    network: the model's graph with live parameters, None where training mode differs from evaluation mode (BatchNorm).
    memory: what the objective remembers of each training image, (N, C, H, W) each, changed in place.
    """

    model: nn.Module
    settings: TrainSettings
    generator: torch.Generator
    network: Network | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)


Loss = Callable[[Task, Batch], tuple[Tensor, Tensor]]
"""-> the loss to minimise, and the logits (B, n) that training accuracy is taken from."""

Regulariser = Callable[[Task, Batch], Tensor]
"""-> a scalar, to be weighted and added to the loss."""


@dataclass(frozen=True)
class Objective:
    """memory: names of the tensors it keeps per training image; begin_epoch(task, epoch) may reset them."""

    loss: Loss
    memory: tuple[str, ...] = ()
    begin_epoch: Callable[[Task, int], None] | None = None


OBJECTIVES: dict[str, Objective] = {}
REGULARISERS: dict[str, Regulariser] = {}


def objective(
    name: str, *, memory: tuple[str, ...] = (), begin_epoch: Callable[[Task, int], None] | None = None
) -> Callable[[Loss], Loss]:
    """Register a loss under a name."""

    def add(loss: Loss) -> Loss:
        OBJECTIVES[name] = Objective(loss, memory, begin_epoch)
        return loss

    return add


def regulariser(name: str) -> Callable[[Regulariser], Regulariser]:
    """Register a regulariser under a name."""

    def add(function: Regulariser) -> Regulariser:
        REGULARISERS[name] = function
        return function

    return add


def objective_named(name: str) -> Objective:
    if name not in OBJECTIVES:
        raise SettingsError(unknown_name("objective", name, list(OBJECTIVES)))
    return OBJECTIVES[name]
