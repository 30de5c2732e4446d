"""ReLU and leaky ReLU: convex, so the chord is above and any subgradient line through the kink is below."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds.relaxations.lines import RELAXATIONS, Lines, Relaxation


def relax_leaky(lb: Tensor, ub: Tensor, alpha: Tensor, negative_slope: float) -> Lines:
    """act(z) = max(z, a z) with a = negative_slope <= 1; ReLU is a = 0.

    upper: the chord, slope s = (ub - a lb) / (ub - lb), intercept (a - s) lb.
    lower: slope a + alpha (1 - a), intercept 0.
    Active (lb >= 0): the line z. Inactive (ub <= 0): the line a z.
    Where ub - lb is no finite number, there is no chord: an infinite intercept proves nothing.
    """
    active, inactive = lb >= 0, ub <= 0
    width = torch.where(active | inactive, 1.0, ub - lb)
    chord = (ub - negative_slope * lb) / width
    kink = negative_slope + alpha[0] * (1.0 - negative_slope)

    stable = negative_slope + active.to(lb.dtype) * (1.0 - negative_slope)

    def pick(unstable: Tensor) -> Tensor:
        return torch.where(active | inactive, stable, unstable)

    above = torch.where(torch.isfinite(width), (negative_slope - chord) * lb, torch.inf)
    intercept = torch.where(active | inactive, 0.0, above)
    return Lines(pick(kink), None, pick(chord), intercept)


def start_leaky(lb: Tensor, ub: Tensor) -> Tensor:
    """The lower line that encloses the smaller area: slope 1 if ub > -lb, else the negative slope."""
    return (ub > -lb).to(lb.dtype).unsqueeze(0)


def exact_leaky(lb: Tensor, ub: Tensor) -> Tensor:
    """The kink is not inside. NaN compares false, so it counts as not exact."""
    return (lb >= 0) | (ub <= 0)


def leaky(z: Tensor, negative_slope: float) -> Tensor:
    return torch.nn.functional.leaky_relu(z, negative_slope)


def relu(z: Tensor, negative_slope: float) -> Tensor:
    return z.relu()


RELAXATIONS["relu"] = Relaxation(relu, start_leaky, relax_leaky, exact_leaky, one_sided=True)
RELAXATIONS["leaky-relu"] = Relaxation(leaky, start_leaky, relax_leaky, exact_leaky, one_sided=True)
