"""Walking back from the outputs and from every uncertain neuron of the middle network; bounds neuron by neuron."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.memory import chunked
from lipgraft.bounds.sound import guard_upper
from lipgraft.sensitivity.middle_network import Middle, Uncertain


@dataclass(frozen=True, eq=False)
class Expansion:
    """t = rows + e V and |e| <= radius |adjoints + e B|, see `middle_network`.

    Shapes: K outputs, N uncertain neurons, M of them kept.
    rows: (B, K, n). adjoints: (B, K, N). radius: (B, N).
    reach: (B, K, N), bounds of |adjoints + e B|, hence radius * reach of |e|, for every neuron by itself.
    spread: (B, K, n), the bound of |e V| that follows.
    V: (B, M, n) and B: (B, M, M), of the kept neurons. spans: their numbers, activation by activation.
    slack: (B, K, M), how far neurons that are not kept may move the kept ones' adjoints.
    aside: (B, K, n), how far they may move the row.
    """

    rows: Tensor
    adjoints: Tensor
    radius: Tensor
    reach: Tensor
    spread: Tensor
    V: Tensor
    B: Tensor
    spans: list[slice]
    slack: Tensor
    aside: Tensor


def expand(middle: Middle, outputs: Tensor, weight: Tensor) -> Expansion:
    """outputs: (B, K, outputs), rows at the network's output. weight: (*input_shape,), a factor on every input.

    Activations are taken from the output on, since a remainder's bound needs those of the later ones:
    |e_j| <= r_j (|g_m,j| + sum over later neurons l of |e_l| |B_lj|).
    """
    batch, count, kept = len(outputs), middle.count(kept=False), middle.count(kept=True)
    arrivals: dict[int, Tensor] = {}
    rows = (middle.back(outputs, middle.network.output, slice(0, batch), arrivals) * weight).flatten(2)
    adjoints, radius = rows.new_zeros(batch, rows.shape[1], count), rows.new_zeros(batch, count)
    for group in middle.groups:
        radius[:, group.span] = group.radius
        if group.position in arrivals:  # otherwise the output does not depend on this activation
            adjoints[:, :, group.span] = group.pick(arrivals[group.position])
    out = Expansion(
        rows=rows,
        adjoints=adjoints,
        radius=radius,
        reach=adjoints.abs(),
        spread=torch.zeros_like(rows),
        V=rows.new_zeros(batch, kept, rows.shape[2]),
        B=rows.new_zeros(batch, kept, kept),
        spans=[group.span for group in middle.groups if group.kept],
        slack=rows.new_zeros(batch, rows.shape[1], kept),
        aside=torch.zeros_like(rows),
    )
    for group in reversed(middle.groups):
        _walk(middle, group, weight, out)
    return out


def _walk(middle: Middle, group: Uncertain, weight: Tensor, out: Expansion) -> None:
    """Walk back from the neurons of one group; write their part of V and B, and add what their remainders do."""
    target = middle.network.nodes[group.position].inputs[0]
    shape = middle.network.nodes[target].shape

    def work(problems: slice, part: slice) -> None:
        index, real = group.index[problems, part], group.radius[problems, part] != 0
        start = weight.new_zeros(*index.shape, math.prod(shape))
        start.scatter_(2, index.unsqueeze(2), real.to(weight.dtype).unsqueeze(2))
        arrivals: dict[int, Tensor] = {}
        end = middle.back(start.view(*index.shape, *shape), target, problems, arrivals)
        ours = slice(group.span.start + part.start, group.span.start + part.start + index.shape[1])
        remainder = out.radius[problems, None, ours] * out.reach[problems, :, ours]
        row = (end * weight).flatten(2)
        if group.kept:
            out.V[problems, ours] = row
        _add(out.spread, out.aside, group, problems, remainder @ row.abs())
        for earlier in middle.groups:
            if earlier.position in arrivals:
                between = earlier.at(problems).pick(arrivals[earlier.position])
                if group.kept and earlier.kept:
                    out.B[problems, ours, earlier.span] = between
                moved = remainder @ between.abs()
                slack = out.slack[:, :, earlier.span] if earlier.kept else None
                _add(out.reach[:, :, earlier.span], slack, group, problems, moved)

    bytes_per_row = middle.row_floats(target) * weight.element_size()
    chunked(len(group.index), group.index.shape[1], bytes_per_row, weight.device, work)


def _add(total: Tensor, by_others: Tensor | None, group: Uncertain, problems: slice, moved: Tensor) -> None:
    """Add to the total; and to the part of it that is owed to neurons that are not kept."""
    total[problems] += moved
    if by_others is not None and not group.kept:
        by_others[problems] += moved


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
