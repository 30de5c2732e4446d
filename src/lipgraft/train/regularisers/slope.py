"""The paper's slope loss: slopes of upper bounds should be those of stable neurons."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.train.registry import Batch, Task, regulariser
from lipgraft.train.regularisers.intervals import pre_activations


def penalty(s: Tensor, form: str, k: float) -> Tensor:
    """1 - tanh(k (1 - s)^2) as printed, or the symmetric 1 - tanh(k (1 - 2s)^2), largest at s = 1/2."""
    return 1 - torch.tanh(k * (1 - s if form == "printed" else 1 - 2 * s).square())


@regulariser("slope")
def slope(task: Task, batch: Batch) -> Tensor:
    """Sum of the penalty of s = ub / (ub - lb) over unstable neurons, mean over the batch; plus that of s = gamma
    over grafted neurons. Stable neurons do not count.
    """
    settings = task.settings
    total = batch.x.new_zeros(())
    for node, lb, ub in pre_activations(task, batch):
        if settings.slope_scope != "grafted":
            unstable = (lb < 0) & (ub > 0)
            if node.graft is not None:
                unstable = unstable & ~node.graft.mask
            s = torch.where(unstable, ub, 1.0) / torch.where(unstable, ub - lb, 1.0)  # no 0/0, not even in a gradient
            chords = penalty(s, settings.slope_form, settings.slope_k)
            total = total + torch.where(unstable, chords, 0.0).sum() / len(lb)
        if settings.slope_scope != "unstable" and node.graft is not None:
            lines = penalty(node.graft.gamma, settings.slope_form, settings.slope_k)
            total = total + torch.where(node.graft.mask, lines, 0.0).sum()
    return total
