"""The attacks by name: what each maximises and how far each step goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.errors import SettingsError, unknown_name

Steps = Callable[[int, float | None], list[float]]
"""(number of steps, step size or None) -> one step size per step, all as multiples of eps."""


@dataclass(frozen=True)
class Method:
    """targeted: one ascent per wrong class, of (its logit - the true logit); otherwise one ascent of cross-entropy.

    momentum: of the direction whose sign is followed. fixed_steps: the method's own number of steps, if it has one.
    """

    steps: Steps
    targeted: bool = False
    momentum: float = 0.0
    fixed_steps: int | None = None


ATTACKS: dict[str, Method] = {}


def register(
    name: str, *, targeted: bool = False, momentum: float = 0.0, fixed_steps: int | None = None
) -> Callable[[Steps], Steps]:
    """Put a rule of step sizes into `ATTACKS` as an attack of this name."""

    def add(steps: Steps) -> Steps:
        ATTACKS[name] = Method(steps, targeted, momentum, fixed_steps)
        return steps

    return add


def method_named(name: str) -> Method:
    if name not in ATTACKS:
        raise SettingsError(unknown_name("attack", name, list(ATTACKS)))
    return ATTACKS[name]


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


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(B,): what an untargeted attack maximises."""
    return F.cross_entropy(logits, y, reduction="none")


def target_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """(B,): target logit - true logit."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def worst_margin(logits: Tensor, y: Tensor) -> Tensor:
    """(B,): the largest wrong logit - the true logit. logits: (B, n), n >= 2."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return others.amax(1) - logits.gather(1, y[:, None]).squeeze(1)


def misclassified(margin: Tensor) -> Tensor:
    """What "misclassified" means everywhere: some wrong logit is strictly larger than the true one.

    margin: of `worst_margin`. A tie is not: it depends on no order of the classes. NaN is not either.
    """
    return margin > 0
