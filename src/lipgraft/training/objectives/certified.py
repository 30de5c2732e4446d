"""What certified objectives share: their attack, lower bounds of the margins, and the share of clean images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.attacks.ascent import ascend, random_start
from lipgraft.attacks.methods import cross_entropy, pgd_steps
from lipgraft.network.graph import Network
from lipgraft.settings import setting
from lipgraft.training.folded import folded_margins
from lipgraft.training.intervals import box_balls, clean_logits, exact_products, graph_of, margin_bounds
from lipgraft.training.objectives.adversarial import AttackSettings
from lipgraft.training.tangent import value
from lipgraft.training.task import Ball, Batch, Task, check, pixel_box


@dataclass(frozen=True)
class CertifiedSettings(AttackSettings):
    """Of every certified objective."""

    clean_share: float = setting(0.0, "Share of cross-entropy on clean images in the loss of certified objectives.")
    attack_reach: float = setting(
        1.0,
        "Radius of the attack in mtl-ibp, cc-ibp, exp-ibp and sabr, as a multiple of eps; it follows the ramp of eps.",
    )
    attack_restarts: int = setting(1, "Random starts of that attack; for each image the worst one is used.")
    attack_worst: bool = setting(
        False, "Whether to use the worst point of all its steps, as published; otherwise the last point of each start."
    )
    fold_lines: bool = setting(False, "Bound linear layers and margins through grafted neurons in one affine step.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("clean_share", self.clean_share, 0 <= self.clean_share <= 1, "in [0, 1]")
        check("attack_reach", self.attack_reach, self.attack_reach > 0, "a finite number > 0")
        check("attack_restarts", self.attack_restarts, self.attack_restarts >= 1, "a whole number >= 1")


def verified_loss(margins: Tensor, y: Tensor) -> Tensor:
    """CE(-m, y): with lower bounds m of f_y - f_j and 0 at j = y, an upper bound of the loss within the box."""
    return F.cross_entropy(-margins, y)


def interval_margins(task: Task, batch: Batch) -> Tensor:
    """Lower bounds of f_y - f_j over the step's box, by interval arithmetic. (B, n)."""
    return margins_of(task, batch, box_balls(task, batch))


def margins_of(task: Task, batch: Batch, balls: list[Ball], shrink: float = 1.0) -> Tensor:
    """Lower bounds of f_y - f_j from the balls of all nodes. (B, n). shrink: what these were computed with."""
    network = graph_of(task, batch)
    with exact_products(task, batch.x.device):
        if task.own(CertifiedSettings).fold_lines:
            return folded_margins(network, balls, batch.y, shrink)
        return margin_bounds(network, balls, batch.y)


def with_clean(task: Task, batch: Batch, loss: Tensor) -> Tensor:
    """(1 - share) loss + share CE(f(x), y)."""
    share = task.own(CertifiedSettings).clean_share
    return (1 - share) * loss + share * F.cross_entropy(clean_logits(task, batch), batch.y) if share else loss


def reach(task: Task, batch: Batch) -> float | Tensor:
    """The radius of the attack in this step."""
    settings = task.own(CertifiedSettings)
    return settings.attack_reach * settings.eps * batch.share


def attacked(task: Task, batch: Batch, network: Network) -> Tensor:
    """The end of an ascent of cross-entropy from a random start, for each image the worst of all starts.

    With `attack_worst` the worst point on the way, the end included.
    """
    settings, radius = task.own(CertifiedSettings), reach(task, batch)
    starts, images = settings.attack_restarts, len(batch.x)
    x, y = torch.cat([batch.x] * starts), batch.y.repeat(starts)
    lower, upper = pixel_box(x, radius)
    start = random_start(x, radius, lower, upper, task.generator)
    steps = pgd_steps(settings.attack_steps, settings.attack_step_size)
    forward, kept = partial(value, network), _Worst(y)
    end, _ = ascend(
        forward,
        start,
        lower,
        upper,
        lambda logits: cross_entropy(logits, y),
        eps=radius,
        steps=steps,
        visit=kept.see if settings.attack_worst else None,
    )
    if starts == 1 and not settings.attack_worst:
        return end
    with torch.no_grad():
        kept.see(end, forward(end))
    worst = kept.loss.view(starts, -1).argmax(0) * images + torch.arange(images, device=end.device)
    return torch.empty_like(batch.x).copy_(kept.point.index_select(0, worst))  # in the memory layout of the images


class _Worst:
    """Of the points seen, the one with the largest cross-entropy in each row, and that loss."""

    def __init__(self, y: Tensor) -> None:
        self.y = y
        self.loss, self.point = torch.empty(0), torch.empty(0)

    @torch.no_grad()
    def see(self, x: Tensor, logits: Tensor) -> None:
        loss = cross_entropy(logits, self.y)
        if len(self.loss) == 0:
            self.loss, self.point = loss, x.detach()
            return
        more = loss > self.loss
        self.point = torch.where(more.view(-1, *[1] * (x.ndim - 1)), x, self.point)
        self.loss = torch.maximum(loss, self.loss)
