"""SABR (Mueller et al., 2023): interval bounds of a small box around an adversarial example."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lipgraft.attacks.ascent import project
from lipgraft.settings import setting
from lipgraft.training.intervals import balls_of, exact_products, graph_of
from lipgraft.training.objectives.certified import (
    CertifiedSettings,
    attacked,
    margins_of,
    reach,
    verified_loss,
    with_clean,
)
from lipgraft.training.task import Batch, Task, check, pixel_box


@dataclass(frozen=True)
class SabrSettings(CertifiedSettings):
    """Of `sabr`."""

    small_box: float = setting(0.1, "Radius of sabr's small box as a share of the attack's radius.")
    relu_shrink: float = setting(
        1.0, "Factor that sabr applies to the upper bounds after unstable ReLUs (published for eps 2/255: 0.8)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check("small_box", self.small_box, 0 < self.small_box <= 1, "in (0, 1]")
        check("relu_shrink", self.relu_shrink, 0 <= self.relu_shrink <= 1, "in [0, 1]")


def sabr(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(-m, y), m over the box of small_box times the attack's radius around x_adv, moved into the attack's box."""
    settings, network = task.own(SabrSettings), graph_of(task, batch)
    lower, upper = pixel_box(batch.x, reach(task, batch))
    radius = settings.small_box * (upper - lower) / 2
    centre = project(attacked(task, batch, network), lower + radius, upper - radius)
    with exact_products(task, batch.x.device):
        batch.kept.bounded = balls_of(network, (centre, radius), settings.relu_shrink)
    margins = margins_of(task, batch, batch.kept.bounded, settings.relu_shrink)
    return with_clean(task, batch, verified_loss(margins, batch.y)), -margins
