"""Nothing is called a counterexample before the original model has misclassified it, inside the box."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipgraft.attack import ascend
from lipgraft.attack.methods import pgd_steps, target_margin
from lipgraft.network import call, evaluated, full_precision


@torch.no_grad()
def replay(model: nn.Module, point: Tensor, y: int, low: Tensor, high: Tensor) -> tuple[Tensor, float] | None:
    """The point (on the CPU) and its margin if the model, given this point alone, takes it for another class than y.

    point, low, high: (*shape). A point outside the box or with logits that are not finite is none.
    """
    if not bool(((point >= low) & (point <= high)).all()):
        return None
    with evaluated(model), full_precision():
        logits = call(model, point[None])[0]
    if not bool(torch.isfinite(logits).all()) or int(logits.argmax()) == y:
        return None
    others = torch.cat([logits[:y], logits[y + 1 :]])
    return point.detach().cpu().clone(), float(logits[y] - others.max())


def short_attack(
    model: nn.Module, start: Tensor, y: Tensor, target: Tensor, low: Tensor, high: Tensor, steps: int
) -> Tensor:
    """A short targeted ascent from given points of boxes. start, low, high: (B, *shape); y, target: (B,)."""
    radius = (high - low) / 2
    with evaluated(model, freeze=True):
        point, _ = ascend(
            model,
            start,
            low,
            high,
            lambda logits: target_margin(logits, y, target),
            eps=radius,
            steps=pgd_steps(steps, None),
        )
    return point
