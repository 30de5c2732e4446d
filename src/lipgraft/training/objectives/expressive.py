"""Expressive losses (De Palma et al., 2024): from the loss under attack to that of interval bounds, by one share a."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from lipgraft.network import evaluate
from lipgraft.settings import setting
from lipgraft.training.intervals import graph_of
from lipgraft.training.objectives.certified import (
    CertifiedSettings,
    attacked,
    interval_margins,
    verified_loss,
    with_clean,
)
from lipgraft.training.task import Batch, Task, check


@dataclass(frozen=True)
class ExpressiveSettings(CertifiedSettings):
    """Of `mtl-ibp`, `cc-ibp` and `exp-ibp`."""

    ibp_share: float = setting(
        4e-3, "Share a of the interval bounds in mtl-ibp, cc-ibp (published: 1e-2) and exp-ibp (9.5e-2)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check("ibp_share", self.ibp_share, 0 <= self.ibp_share <= 1, "in [0, 1]")


def mtl_ibp(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """(1 - a) CE(f(x_adv), y) + a CE(-m, y)."""
    logits, margins, a = _both(task, batch)
    loss = (1 - a) * F.cross_entropy(logits, batch.y) + a * verified_loss(margins, batch.y)
    return with_clean(task, batch, loss), logits


def cc_ibp(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(-((1 - a) m_adv + a m), y), m_adv: the margins f_y - f_j under attack."""
    logits, margins, a = _both(task, batch)
    under_attack = logits.gather(1, batch.y[:, None]) - logits
    return with_clean(task, batch, verified_loss((1 - a) * under_attack + a * margins, batch.y)), logits


def exp_ibp(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(f(x_adv), y)^(1 - a) CE(-m, y)^a, of the batch's means."""
    logits, margins, a = _both(task, batch)
    losses = F.cross_entropy(logits, batch.y), verified_loss(margins, batch.y)
    adversarial, verified = (loss.clamp(min=1e-12) for loss in losses)  # a power has no derivative at 0
    return with_clean(task, batch, adversarial ** (1 - a) * verified**a), logits


def _both(task: Task, batch: Batch) -> tuple[Tensor, Tensor, float]:
    """Logits under attack (B, n), interval bounds of the margins (B, n), and the share a."""
    network = graph_of(task, batch)
    logits = evaluate(network, attacked(task, batch, network))[network.output]
    return logits.float(), interval_margins(task, batch), task.own(ExpressiveSettings).ibp_share
