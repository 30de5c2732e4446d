"""Which neuron to split.

A score looks at every open neuron once; a rule then takes the best, or tries the best few by one bounding step and
keeps the one whose halves leave least to prove. Grafted neurons are lines and never among the open ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.errors import SettingsError, unknown_name


@dataclass(frozen=True, eq=False)
class Neurons:
    """What is known of the open neurons of B subproblems, each (B, U).

    coefficient: of the neuron's output in the bound; lower, upper: of its pre-activation z; bias: z's own bias;
    negative_slope: of the activation left of zero.
    """

    coefficient: Tensor
    lower: Tensor
    upper: Tensor
    bias: Tensor
    negative_slope: Tensor

    def chord(self) -> tuple[Tensor, Tensor]:
        """Slope and intercept of the upper line."""
        width = (self.upper - self.lower).clamp(min=torch.finfo(self.lower.dtype).tiny)
        slope = (self.upper - self.negative_slope * self.lower) / width
        return slope, (self.negative_slope - slope) * self.lower


Score = Callable[[Neurons], Tensor]


@dataclass(frozen=True)
class Branching:
    """score: (B, U), higher is better; tries: whether the best few are tried by one bounding step."""

    score: Score
    tries: bool


BRANCHING: dict[str, Branching] = {}


def register(name: str, *, tries: bool = False) -> Callable[[Score], Score]:
    def add(score: Score) -> Score:
        BRANCHING[name] = Branching(score, tries)
        return score

    return add


def branching_named(name: str) -> Branching:
    if name not in BRANCHING:
        raise SettingsError(unknown_name("branching", name, list(BRANCHING)))
    return BRANCHING[name]


@register("babsr")
def babsr(neurons: Neurons) -> Tensor:
    """How much the bound changes if the neuron becomes a line and all other coefficients stay.

    With coefficient a, chord slope s and intercept t, and the pre-activation's bias b standing for its value: the
    chord's intercept is saved where it was used, -min(a, 0) t, and the better of the two slopes replaces s at b,
    max(a (s - 1) b, a (s - n) b), n the negative slope.
    """
    a, b = neurons.coefficient, neurons.bias
    slope, intercept = neurons.chord()
    moved = torch.maximum(a * (slope - 1) * b, a * (slope - neurons.negative_slope) * b)
    return (moved - a.clamp(max=0) * intercept).abs()


@register("filtered", tries=True)
@register("intercept")
def intercept(neurons: Neurons) -> Tensor:
    """The most that the chord can cost, at z = 0: -min(a, 0) t. See docs/verifier.md."""
    return -neurons.coefficient.clamp(max=0) * neurons.chord()[1]


@register("widest")
def widest(neurons: Neurons) -> Tensor:
    """The width of the pre-activation's interval."""
    return neurons.upper - neurons.lower
