"""Gradient alignment (Andriushchenko and Flammarion, 2020): the input gradient should not turn within the box."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.attacks.ascent import Loss, input_gradient
from lipgraft.attacks.methods import cross_entropy
from lipgraft.draws import for_batch
from lipgraft.settings import setting
from lipgraft.training.tangent import value_and_tangent
from lipgraft.training.task import Batch, StepSettings, Task, check

FLOOR = 1e-4
"""Gradients shorter than this share of the batch's longest are rounding, and so is their direction.

Where the true class's probability rounds to 1, a gradient can be far shorter than its own error. The derivative of the
cosine divides by that length: one such image in a batch is enough to throw the weights off.
"""


@dataclass(frozen=True)
class GradAlignSettings(StepSettings):
    """Of `grad-align`."""

    grad_align: float = setting(0.2, "Weight of gradient alignment.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("grad_align", self.grad_align, self.grad_align >= 0, "a finite number >= 0")


def grad_align(task: Task, batch: Batch) -> Tensor:
    """R = 1 - mean cos(g1, g2): g1 the gradient of CE at x (held fixed), g2 that at x + U(-eps, eps).

    Images where either gradient is zero, or too short to have a direction, are left out of the mean.
    """
    noisy = batch.x + uniform_noise(task, batch.x)
    if not use_tangent(task):
        return double_backward(task, batch, noisy)
    network = task.network
    assert network is not None
    both = torch.cat([batch.x, noisy])
    gradient, _ = input_gradient(task.model, both, cross_entropy_of(batch.y.repeat(2)))
    value, v = misalignment(*gradient.chunk(2))
    logits, tangent = value_and_tangent(network, noisy, v)
    return with_gradient_of(value, directional_loss(logits, tangent, batch.y))


def use_tangent(task: Task) -> bool:
    """Whether the formulation without double backward applies."""
    return task.settings.fused and task.network is not None


def uniform_noise(task: Task, x: Tensor) -> Tensor:
    """U(-eps, eps) per pixel."""

    def draw(rows: int) -> Tensor:
        return torch.rand((rows, *x.shape[1:]), dtype=x.dtype, device=x.device, generator=task.generator)

    noise = for_batch(draw, len(x), task.generator)
    return task.settings.eps * (2 * noise - 1)


def double_backward(task: Task, batch: Batch, noisy: Tensor) -> Tensor:
    """R by its definition: g2 is differentiated again."""
    ce = cross_entropy_of(batch.y)
    g1, _ = input_gradient(task.model, batch.x, ce)
    point = noisy.detach().requires_grad_()
    (g2,) = torch.autograd.grad(ce(task.model(point)).sum(), point, create_graph=True, materialize_grads=True)
    g1, g2 = g1.flatten(1), g2.flatten(1)
    keep = (has_direction(g1) & has_direction(g2.detach())).squeeze(1)
    # The square root of 0 has no gradient: replace before, not after, or NaN comes back through the backward pass.
    n1, n2 = (torch.where(keep, g.square().sum(1), 1.0).sqrt() for g in (g1, g2))
    cosine = (g1 * g2).sum(1) / n1 / n2
    return torch.where(keep, 1 - cosine, 0.0).sum() / keep.sum().clamp(min=1)


def has_direction(g: Tensor) -> Tensor:
    """Which rows are long enough: (B, n) -> (B, 1)."""
    length = g.norm(dim=1, keepdim=True)
    enough: Tensor = length > FLOOR * length.amax()
    return enough


def misalignment(g1: Tensor, g2: Tensor) -> tuple[Tensor, Tensor]:
    """R, and its gradient v with respect to g2. Both without a graph. g1, g2, v: (B, *shape)."""
    shape, g1, g2 = g2.shape, g1.flatten(1), g2.flatten(1)
    keep = has_direction(g1) & has_direction(g2)
    n1, n2 = g1.norm(dim=1, keepdim=True), g2.norm(dim=1, keepdim=True)
    u1, u2 = g1 / torch.where(keep, n1, 1.0), g2 / torch.where(keep, n2, 1.0)
    cosine = (u1 * u2).sum(1, keepdim=True)
    share = keep / keep.sum().clamp(min=1)  # what each image counts in the mean
    v = (cosine * u2 - u1) * (share / torch.where(keep, n2, 1.0))
    return ((1 - cosine) * share).sum(), v.reshape(shape)


def cross_entropy_of(y: Tensor) -> Loss:
    """The loss of each image with these labels, as a function of the logits."""
    return lambda logits: cross_entropy(logits, y)


def directional_loss(logits: Tensor, tangent: Tensor, y: Tensor) -> Tensor:
    """The derivative of the summed cross-entropy when the logits move along `tangent`: sum (softmax - onehot) tangent.

    logits, tangent: (B, n).
    """
    logits, tangent = logits.float(), tangent.float()
    return (logits.softmax(1) * tangent).sum() - tangent.gather(1, y[:, None]).sum()


def with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    """`value`, whose gradient is that of `other`."""
    return value + (other - other.detach())
