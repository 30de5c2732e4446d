"""The attacks by name: what each maximises and how far each step goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.errors import SettingsError, unknown_name


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(B,): what an untargeted attack maximises."""
    return F.cross_entropy(logits, y, reduction="none")


def target_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """(B,): target logit - true logit."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def logits_ratio(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """(B,): (largest wrong logit - true logit) / (first - third largest logit).

    Neither the scale nor the offset of the logits matters, so that a model cannot hide its gradients by large logits.
    Fewer than three classes have no such scale, and the numerator stands alone.
    """
    largest = logits.topk(min(3, logits.shape[1]), 1).values
    return worst_margin(logits, y) / _scale(largest[:, 0] - largest[:, -1], logits.shape[1] >= 3)


def target_ratio(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """(B,): (target logit - true logit) / (first - mean of third and fourth largest logit), as in `logits_ratio`.

    With three classes the third stands for both; with fewer the numerator stands alone.
    """
    largest = logits.topk(min(4, logits.shape[1]), 1).values
    return target_margin(logits, y, target) / _scale(largest[:, 0] - largest[:, 2:].mean(1), logits.shape[1] >= 3)


def _scale(distance: Tensor, known: bool) -> Tensor:
    """What a margin is divided by: ties must not make it zero."""
    return distance.clamp_min(1e-12) if known else torch.ones_like(distance)


def worst_margin(logits: Tensor, y: Tensor) -> Tensor:
    """(B,): the largest wrong logit - the true logit. logits: (B, n), n >= 2."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return others.amax(1) - logits.gather(1, y[:, None]).squeeze(1)


def misclassified(margin: Tensor) -> Tensor:
    """What "misclassified" means everywhere: some wrong logit is strictly larger than the true one.

    margin: of `worst_margin`. A tie is not: it depends on no order of the classes. NaN is not either.
    """
    return margin > 0


Steps = Callable[[int, float | None], list[float]]
"""(number of steps, step size or None) -> one step size per step, all as multiples of eps."""


Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits (B, n), true classes (B,), targets (B,)) -> what each row's attack maximises (B,)."""


@dataclass(frozen=True)
class Method:
    """targeted: one ascent per wrong class; otherwise one in all. objective: what it climbs.

    momentum: of the direction whose sign is followed. fixed_steps: the method's own number of steps, if it has one.
    adaptive: only the first step size counts, and each row halves its own when it gets no further (`Adaptive`).
    wide: only the first step size counts, and gradients look past the kinks of activations (`attacks.wide`).
    """

    steps: Steps
    objective: Objective
    targeted: bool = False
    momentum: float = 0.0
    fixed_steps: int | None = None
    adaptive: bool = False
    wide: bool = False


ATTACKS: dict[str, Method] = {}


def register(
    name: str,
    *,
    targeted: bool = False,
    momentum: float = 0.0,
    fixed_steps: int | None = None,
    objective: Objective | None = None,
    adaptive: bool = False,
    wide: bool = False,
) -> Callable[[Steps], Steps]:
    """Put a rule of step sizes into `ATTACKS` as an attack of this name.

    objective: by default (target logit - true logit) of a targeted attack and the cross-entropy of another.
    """
    usual: Objective = target_margin if targeted else (lambda logits, y, target: cross_entropy(logits, y))

    def add(steps: Steps) -> Steps:
        ATTACKS[name] = Method(steps, objective or usual, targeted, momentum, fixed_steps, adaptive, wide)
        return steps

    return add


def method_named(name: str) -> Method:
    if name not in ATTACKS:
        raise SettingsError(unknown_name("attack", name, list(ATTACKS)))
    return ATTACKS[name]


@register("apgd-ce", adaptive=True)
@register("apgd-dlr", adaptive=True, objective=logits_ratio)
@register("apgd-targeted", adaptive=True, targeted=True, objective=target_ratio)
def adaptive_steps(steps: int, size: float | None = None) -> list[float]:
    """Steps of 2 eps, across the whole box, which halve by themselves: nothing is left to tune."""
    return [2.0 if size is None else size] * steps


@register("fgsm", fixed_steps=1)
def fgsm_steps(steps: int, size: float | None = None) -> list[float]:
    """One step of 1.25 eps from a random start."""
    return [1.25 if size is None else size]


@register("pgd")
def pgd_steps(steps: int, size: float | None = None) -> list[float]:
    """Equal steps of 2.5 eps / steps: far enough to cross the box, short enough to settle."""
    return [2.5 / steps if size is None else size] * steps


@register("pgd-targeted", targeted=True, momentum=0.9)
def targeted_steps(steps: int, size: float | None = None) -> list[float]:
    """Steps of (eps / 4) 0.99^t / (1 - 0.9^(t+1)): long first steps that shrink, along the sign of a running mean."""
    first = 0.25 if size is None else size
    return [first * 0.99**t / (1 - 0.9 ** (t + 1)) for t in range(steps)]


@register("pgd-wide", targeted=True, wide=True)
def wide_steps(steps: int, size: float | None = None) -> list[float]:
    """Steps that shrink from eps by a constant factor, along mean slopes: for models that hide their gradients."""
    return [1.0 if size is None else size] * steps
