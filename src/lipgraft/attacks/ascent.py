"""Projected sign-gradient ascent inside a box: the one loop behind every attack, in training and in evaluation.

Nothing here waits for the device, so that a training step that contains an attack can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lipgraft.draws import for_batch

Loss = Callable[[Tensor], Tensor]
"""logits (B, n) -> what each row's attack maximises (B,)."""

Model = Callable[[Tensor], Tensor]

Visit = Callable[[Tensor, Tensor], None]
"""Called with each point that a gradient was taken at, and its logits."""


def project(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The nearest point of the box. All (B, *shape)."""
    return torch.minimum(torch.maximum(x, lower), upper)


def random_start(
    x: Tensor, eps: float | Tensor, lower: Tensor, upper: Tensor, generator: torch.Generator | None
) -> Tensor:
    """x + U(-eps, eps) per pixel, projected to the box. eps: a number, or broadcastable to x."""

    def draw(rows: int) -> Tensor:
        return torch.rand((rows, *x.shape[1:]), dtype=x.dtype, device=x.device, generator=generator)

    noise = for_batch(draw, len(x), generator)
    return project(x + eps * (2 * noise - 1), lower, upper)


def input_gradient(model: Model, x: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """The gradient of each row's loss with respect to that row, and the logits. Parameters get no gradient."""
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(point.clone())  # which the model may write into
        (gradient,) = torch.autograd.grad(loss(logits).sum(), point, materialize_grads=True)
    return gradient, logits.detach()


def ascend(
    model: Model,
    start: Tensor,
    lower: Tensor,
    upper: Tensor,
    loss: Loss,
    *,
    eps: float | Tensor,
    steps: Sequence[float],
    momentum: float = 0.0,
    direction: Tensor | None = None,
    visit: Visit | None = None,
    late: Callable[[], bool] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """x <- project(x + step * eps * sign(m)), m <- momentum * m + gradient, once per step: the last x and m.

    start, lower, upper: (B, *shape); eps: a number, or broadcastable to start; steps: multiples of eps. direction: the
    m of an ascent that this one continues. visit(x, logits) is called with each point that a gradient was taken at
    (not with the last one, whose logits are not known). late: asked before each step; once it holds, no more are taken.
    """
    x = start
    for step in steps:
        if late is not None and late():
            break
        gradient, logits = input_gradient(model, x, loss)
        if visit is not None:
            visit(x, logits)
        direction = gradient if direction is None or momentum == 0 else direction * momentum + gradient
        sign = torch.nan_to_num(direction.sign(), nan=0.0)  # a step along NaN would destroy the point
        x = project(x + (step * eps) * sign, lower, upper)
    return x, direction
