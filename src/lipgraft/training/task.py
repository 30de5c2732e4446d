"""What a step hands to objectives and regularisers, and the settings that all of them share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from lipgraft.errors import SettingsError
from lipgraft.network.graph import Network
from lipgraft.settings import converted, setting
from lipgraft.training.batchnorm import Normalised


@dataclass(frozen=True)
class StepSettings:
    """What every part of the loss may ask for. Objectives and regularisers add settings of their own."""

    eps: float = setting(2 / 255, "Perturbation radius in raw pixels, for the attack and the interval bounds.")
    precision: str = setting(
        "auto",
        "Precision of the products in a step: float32, tf32 (GPUs only), bf16, or auto (bf16 on a"
        " GPU, float32 on a CPU).",
        choices=("auto", "float32", "tf32", "bf16"),
    )
    fused: bool = setting(True, "Use the formulation of gradient alignment without double backward, where it applies.")

    def __post_init__(self) -> None:
        converted(self)
        check("eps", self.eps, 0 <= self.eps <= 1, "in [0, 1], in raw pixels (8/255, not 8)")


def check(name: str, value: float, fine: bool, rule: str) -> None:
    """Refuse a setting that breaks its rule, or is not finite."""
    if not (fine and math.isfinite(value)):
        raise SettingsError(f"{name} must be {rule}, got {value}.")


S = TypeVar("S", bound=StepSettings)


Ball = tuple[Tensor, Tensor]
"""Centre and radius of an interval, (B, *shape) each."""


@dataclass(eq=False)
class Kept:
    """What one part of a step's loss computes and another may read.

    graph: the network of this step, with its BatchNorm fixed by the clean batch; clean: logits of the clean batch;
    box: the ball of every node over the step's box; bounded: the same over the box that the objective bounds, if that
    is another one.
    """

    graph: Network | None = None
    clean: Tensor | None = None
    box: list[Ball] | None = None
    bounded: list[Ball] | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """x: (B, C, H, W) in [0, 1], augmented; y: (B,); index: (B,), positions among the training images.

    share: of eps, the radius of the interval bounds in this step; less than 1 while it is raised.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    share: Tensor | float = 1.0
    kept: Kept = field(default_factory=Kept)


def pixel_box(x: Tensor, eps: float | Tensor) -> tuple[Tensor, Tensor]:
    """The ends of the eps-box around x within [0, 1]."""
    return (x - eps).clamp(min=0.0), (x + eps).clamp(max=1.0)


@dataclass(frozen=True, eq=False)
class Task:
    """What stays the same from step to step.

    settings: those of the run, of every objective and regulariser; each asks for its own with `own`.
    network: the model's graph with live parameters, None where training mode differs from evaluation mode (BatchNorm).
    normalised: of a network with BatchNorm, the graph that the clean batch completes; only for objectives with bounds.
    memory: what the objective remembers of each training image, (N, C, H, W) each, changed in place.
    """

    model: nn.Module
    settings: StepSettings
    generator: torch.Generator
    network: Network | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)
    normalised: Normalised | None = None

    def own(self, kind: type[S]) -> S:
        """The settings, as those of one objective or regulariser."""
        assert isinstance(self.settings, kind)
        return self.settings


Loss = Callable[[Task, Batch], tuple[Tensor, Tensor]]
"""-> the loss to minimise, and the logits (B, n) that training accuracy is taken from."""

Regulariser = Callable[[Task, Batch], Tensor]
"""-> a scalar, to be weighted and added to the loss."""


@dataclass(frozen=True)
class Objective:
    """memory: names of the tensors it keeps per training image; begin_epoch(task, epoch) may reset them.

    bounds: it bounds the network, and so needs its graph.
    """

    loss: Loss
    memory: tuple[str, ...] = ()
    begin_epoch: Callable[[Task, int], None] | None = None
    bounds: bool = False
