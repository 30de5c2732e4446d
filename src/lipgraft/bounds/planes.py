"""Planes above ReLUs: what a neuron reads bounds it better than its pre-activation alone.

The chord is the best line above a ReLU over an interval [l, u] of its pre-activation z. But z = sum_i w_i x_i + b, and
the x_i lie in a box. Over a box there are planes

    relu(z) <= sum_i c_i w_i x_i + k,    0 <= c_i <= 1,

that say more than the chord: in each corner of the box one of them is exact, whatever z is there, and corners are where
bounds are attained. k is the larger of what relu(z) - sum_i c_i w_i x_i can be where z <= 0 and where z >= 0. With
multipliers p >= 0 on z >= l and q >= 0 on z <= u these are at most

    z <= 0:  p (b - l)       + sum_i max (p - c_i) w_i x_i,
    z >= 0:  q u + (1 - q) b + sum_i max (1 - q - c_i) w_i x_i.

Every c, p and q gives a true plane; c_i = p = 1 - q = u / (u - l) is the chord.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import Plan
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.sound import SPARE, UNIT
from lipgraft.network.graph import Activation, Add, Affine, Network

SLACKS = (
    4.0  # times what rounding may cost a neuron's own bound: its weights, the products with c, the sums over neurons
)
ROUNDINGS = 64  # of a plane's constant, beside its sums


@dataclass(frozen=True, eq=False)
class Plane:
    """Planes above U neurons of one activation.

    column: (U,), the neurons' places in the layer; slope: (U, n_j) by source j; const: (U,).
    """

    column: Tensor
    slope: Mapping[int, Tensor]
    const: Tensor


@dataclass(frozen=True, eq=False)
class Choice:
    """What is free in the planes of U neurons that read m values each: share c (U, m); low p (U,); high q (U,)."""

    share: Tensor
    low: Tensor
    high: Tensor

    def to(self, dtype: torch.dtype) -> Choice:
        return Choice(self.share.to(dtype), self.low.to(dtype), self.high.to(dtype))


@dataclass(frozen=True, eq=False)
class Reads:
    """What U neurons of activation `act` read: z = sum_i weight_i x_i + bias.

    column: (U,), their places in the layer; index, weight: (U, m), which values x_i, on one axis for all sources, and
    how much of each; fillers weigh nothing. sources: the sources' positions, in order, with their sizes.
    """

    act: int
    column: Tensor
    index: Tensor
    weight: Tensor
    bias: Tensor
    sources: dict[int, int]

    @staticmethod
    def of(layout: Layout, act: int, column: Tensor) -> Reads | None:
        """None where a neuron reads anything but values of activations or of the root through affine nodes."""
        network, root, target = layout.network, layout.path.root, layout.activation(act).inputs[0]
        between = _affine_nodes(network, root, target)
        if between is None:
            return None
        rows = layout.bias.new_zeros(len(column), layout.places[act].stop - layout.places[act].start)
        rows = rows.scatter(1, column[:, None], 1.0).view(1, 1, len(column), *network.nodes[target].shape)
        plan = Plan(target, root, (1, 1), dict.fromkeys(range(target + 1)), 1)
        walk = Substitution(network, plan, Relaxed({}, (rows, rows)), None)
        found, const = walk.to_sources(Rows(rows), rows.new_zeros(rows.shape[:3]), target, between)
        weights = {j: part.data.reshape(len(column), -1) for j, part in sorted(found.items())}
        dense = torch.cat(list(weights.values()), 1)
        most = max(int((dense != 0).sum(1).max()), 1)
        index = (dense != 0).to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :most]
        sizes = {j: weight.shape[1] for j, weight in weights.items()}
        return Reads(act, column, index, dense.gather(1, index), const.flatten(), sizes)

    def to(self, dtype: torch.dtype) -> Reads:
        return Reads(self.act, self.column, self.index, self.weight.to(dtype), self.bias.to(dtype), self.sources)

    def chord(self, bounds: NeuronBounds, image: int) -> Choice:
        """The choice that gives the chords."""
        lower, upper = self._ends(bounds, image)
        slope = upper / (upper - lower).clamp(min=torch.finfo(upper.dtype).tiny)
        return Choice(slope[:, None].expand_as(self.weight).contiguous(), slope, 1 - slope)

    def plane(self, bounds: NeuronBounds, image: int, choice: Choice) -> Plane:
        """The planes of one of the boxes. In double precision they hold although they are rounded. Differentiable."""
        lower, upper = self._ends(bounds, image)
        low, high = (end[self.index] for end in self._box(bounds, image))
        centre, radius = self.weight * ((low + high) / 2), self.weight.abs() * ((high - low) / 2)
        share, p, q = choice.share, choice.low, choice.high
        below, above = p[:, None] - share, (1 - q)[:, None] - share
        where_off = p * (self.bias - lower) + (below * centre + below.abs() * radius).sum(1)
        where_on = q * upper + (1 - q) * self.bias + (above * centre + above.abs() * radius).sum(1)
        const = torch.maximum(where_off, where_on)
        count, values = self.weight.shape[0], sum(self.sources.values())
        if bounds.slack is not None:
            neuron = self.column + bounds.layout.places[self.act].start
            size = (centre.abs() + radius).sum(1) + self.bias.abs() + lower.abs() + upper.abs()
            roundings = count + values + ROUNDINGS
            lost = SPARE * 2 * roundings * UNIT * (1 + p + q) * size
            const = const + SLACKS * bounds.slack[image, neuron] + lost
        dense = self.weight.new_zeros(count, values).scatter_add(1, self.index, share * self.weight)
        slopes = torch.split(dense, list(self.sources.values()), 1)
        return Plane(self.column, dict(zip(self.sources, slopes, strict=True)), const)

    def _box(self, bounds: NeuronBounds, image: int) -> Interval:
        """Of all values of the sources, in one of the boxes: both ends (n,)."""
        layout = bounds.layout
        lows, highs = [], []
        for j in self.sources:
            if j == layout.path.root:
                low, high = bounds.root[0][image], bounds.root[1][image]
            else:
                node, place = layout.activation(j), layout.places[j]
                low, high = (end[image, place].view(1, *node.shape) for end in (bounds.lower, bounds.upper))
                low, high = node.interval((low, high))
            lows.append(low.flatten())
            highs.append(high.flatten())
        return torch.cat(lows), torch.cat(highs)

    def _ends(self, bounds: NeuronBounds, image: int) -> Interval:
        place = bounds.layout.places[self.act]
        return bounds.lower[image, place][self.column], bounds.upper[image, place][self.column]


def _affine_nodes(network: Network, root: int, target: int) -> set[int] | None:
    """The nodes between some sources, activations or the root, and the target; None if any is not affine."""
    found: set[int] = set()
    waiting = [target]
    while waiting:
        i = waiting.pop()
        node = network.nodes[i]
        if i == root or isinstance(node, Activation) or i in found:
            continue
        if i < root or not isinstance(node, Add | Affine):
            return None
        found.add(i)
        waiting += node.inputs
    return found or None
