"""A bound of the row's norm from the bound of every remainder by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds.numerics import guard_upper
from lipgraft.sensitivity.expansion import Expansion
from lipgraft.sensitivity.middle import Middle


def linear_norms(middle: Middle, expansion: Expansion, weight: Tensor) -> Tensor:
    """The row t = t_m + e V lies within the spread p of t_m, where |e V| <= p. (B, K).

    Above |t_i| on that interval lies the chord of slope a_i = t_m,i / p_i, clipped to [-1, 1], so that
    |t|_1 <= sum max(|t_m,i|, p_i) + a (e V)', and a (e V)' = e (V a') is bounded neuron by neuron, after the sum over
    the inputs. Without the chord: |t|_1 <= sum |t_m,i| + p_i. The smaller one counts.
    """
    rows, spread = expansion.rows, expansion.spread
    size = rows.abs()
    slope = torch.where(size < spread, rows / torch.where(spread > 0, spread, 1.0), rows.sign())
    felt = middle.forward(slope.view(*slope.shape[:2], *middle.network.input_shape) * weight)
    remainders = expansion.radius.unsqueeze(1) * expansion.reach
    chord = torch.maximum(size, spread).sum(2) + (remainders * felt.abs()).sum(2)
    return guard_upper(torch.minimum((size + spread).sum(2), chord))
