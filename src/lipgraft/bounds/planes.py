"""Planes above ReLUs: what a neuron reads bounds it better than its pre-activation alone.

The chord is the best line above a ReLU over an interval [l, u] of its pre-activation z. But z = sum_i w_i x_i + b, and
the x_i lie in a box. Over a box there are planes

    relu(z) <= sum_i c_i w_i x_i + k,    0 <= c_i <= 1,

that say more than the chord: in each corner of the box one of them is exact, whatever z is there, and corners are where
bounds are attained. k is the larger of what relu(z) - sum_i c_i w_i x_i can be where z <= 0 and where z >= 0. With
multipliers p >= 0 on z >= l and q >= 0 on z <= u these are at most

    z <= 0:  p (b - l)       + sum_i max (p - c_i) w_i x_i,
    z >= 0:  q u + (1 - q) b + sum_i max (1 - q - c_i) w_i x_i.

Every c, p and q gives a true plane; c_i = p = 1 - q = u / (u - l) is the chord. Without p and q these are the planes of
Anderson et al. (2020), which make up the convex hull over the box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import Plan
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.sound import FLUSHED, SPARE, UNIT
from lipgraft.network.graph import Activation, Add, Affine, Network

SLACKS = 4.0  # times what rounding may cost a neuron's own bound: for its weights, and for sums that its plane enters
ROUNDINGS = 64  # of a plane's constant, beside its sums


@dataclass(frozen=True, eq=False)
class Plane:
    """Planes above U neurons of one activation, in each of G groups.

    column: (G, U), the neurons' places in the layer; real: (G, U), false for fillers; slope: (G, U, n_j) by source j;
    const: (G, U).
    """

    column: Tensor
    real: Tensor
    slope: Mapping[int, Tensor]
    const: Tensor

    def to(self, dtype: torch.dtype) -> Plane:
        slope = {j: slope.to(dtype) for j, slope in self.slope.items()}
        return Plane(self.column, self.real, slope, self.const.to(dtype))


@dataclass(frozen=True, eq=False)
class Choice:
    """What is free in planes: share c in [0, 1], (G, U, m); low p and high q, both >= 0, (G, U)."""

    share: Tensor
    low: Tensor
    high: Tensor

    def to(self, dtype: torch.dtype) -> Choice:
        return Choice(self.share.to(dtype), self.low.to(dtype), self.high.to(dtype))

    @staticmethod
    def cat(parts: Sequence[Choice]) -> Choice:
        """Of several groups, filled up to the same shape."""
        neurons, values = max(p.share.shape[1] for p in parts), max(p.share.shape[2] for p in parts)
        return Choice(
            torch.cat([_wide(p.share, neurons, values) for p in parts]),
            torch.cat([_wide(p.low, neurons) for p in parts]),
            torch.cat([_wide(p.high, neurons) for p in parts]),
        )

    def over(self, column: Tensor, other: Choice, others: Tensor) -> Choice:
        """Of one group: what another choice says of neurons that both have. column: (U,), others: (V,), in order."""
        place = torch.searchsorted(others, column).clamp(max=len(others) - 1)
        both = (others[place] == column)[None]
        share = _wide(other.share, len(others), self.share.shape[2])
        return Choice(
            torch.where(both[..., None], share[:, place], self.share),
            torch.where(both, other.low[:, place], self.low),
            torch.where(both, other.high[:, place], self.high),
        )

    def one(self, group: int, neurons: int, values: int) -> Choice:
        """Of one group, without fillers."""
        some = slice(group, group + 1)
        return Choice(self.share[some, :neurons, :values], self.low[some, :neurons], self.high[some, :neurons])


@dataclass(frozen=True, eq=False)
class Reads:
    """What U neurons of activation `act` read, in each of G groups: z = sum_i weight_i x_i + bias.

    image: (G,), the box, a row of the bounds. column, real: (G, U), as in `Plane`.
    index, weight: (G, U, m), which values x_i, on one axis for all sources, and how much of each; fillers weigh
        nothing. sources: the sources' positions, in order, with their sizes.
    """

    act: int
    image: Tensor
    column: Tensor
    real: Tensor
    index: Tensor
    weight: Tensor
    bias: Tensor
    sources: dict[int, int]

    @staticmethod
    def of(layout: Layout, act: int, image: int, column: Tensor) -> Reads | None:
        """Of one group, column: (U,). None where a neuron reads anything but values of activations or of the root
        through affine nodes."""
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
        where, real = column.new_full((1,), image), torch.ones_like(column, dtype=torch.bool)
        return Reads(
            act, where, column[None], real[None], index[None], dense.gather(1, index)[None], const.view(1, -1), sizes
        )

    @staticmethod
    def values(layout: Layout, act: int) -> int:
        """How many values the sources of an activation's neurons have; 0 where `of` finds none."""
        network = layout.network
        between = _affine_nodes(network, layout.path.root, layout.activation(act).inputs[0]) or set()
        sources = {k for i in between for k in network.nodes[i].inputs} - between
        return sum(math.prod(network.nodes[k].shape) for k in sources)

    @staticmethod
    def cat(parts: Sequence[Reads]) -> Reads:
        """Of several groups, filled up to the same shape."""
        neurons, values = max(p.index.shape[1] for p in parts), max(p.index.shape[2] for p in parts)
        return Reads(
            parts[0].act,
            torch.cat([p.image for p in parts]),
            torch.cat([_wide(p.column, neurons) for p in parts]),
            torch.cat([_wide(p.real, neurons) for p in parts]),
            torch.cat([_wide(p.index, neurons, values) for p in parts]),
            torch.cat([_wide(p.weight, neurons, values) for p in parts]),
            torch.cat([_wide(p.bias, neurons) for p in parts]),
            parts[0].sources,
        )

    @property
    def slopes(self) -> int:
        """How many a group's planes have."""
        return self.column.shape[1] * sum(self.sources.values())

    def to(self, dtype: torch.dtype) -> Reads:
        return replace(self, weight=self.weight.to(dtype), bias=self.bias.to(dtype))

    def nothing(self, image: Tensor) -> Reads:
        """No neurons at all, for a group that has none here. image: (1,)."""
        empty = {name: getattr(self, name)[:1, :0] for name in ("column", "real", "index", "weight", "bias")}
        return replace(self, image=image, **empty)

    def chord(self, bounds: NeuronBounds) -> Choice:
        """The choice that gives the chords; of a neuron whose bounds have left its kink behind, any."""
        lower, upper = self._ends(bounds)
        slope = (upper / (upper - lower).clamp(min=torch.finfo(upper.dtype).tiny)).clamp(0, 1)
        return Choice(slope[..., None].expand_as(self.weight).contiguous(), slope, 1 - slope)

    def plane(self, bounds: NeuronBounds, choice: Choice) -> Plane:
        """The planes. In double precision they hold although they are rounded. Differentiable."""
        lower, upper = self._ends(bounds)
        box = self._box(bounds)
        low, high = (end.gather(1, self.index.flatten(1)).view(self.index.shape) for end in box)
        centre, radius = self.weight * ((low + high) / 2), self.weight.abs() * ((high - low) / 2)
        share, p, q = choice.share, choice.low, choice.high
        below, above = p[..., None] - share, (1 - q)[..., None] - share
        where_off = p * (self.bias - lower) + (below * centre + below.abs() * radius).sum(2)
        where_on = q * upper + (1 - q) * self.bias + (above * centre + above.abs() * radius).sum(2)
        const = torch.maximum(where_off, where_on)
        groups, count = self.column.shape
        values = sum(self.sources.values())
        if bounds.slack is not None:
            neuron = self.column + bounds.layout.places[self.act].start
            size = (centre.abs() + radius).sum(2) + self.bias.abs() + lower.abs() + upper.abs()
            roundings = count + values + ROUNDINGS
            lost = SPARE * 2 * roundings * (UNIT * (1 + p + q) * size + FLUSHED)
            const = const + SLACKS * bounds.slack[self.image].gather(1, neuron) + lost
        dense = self.weight.new_zeros(groups, count, values).scatter_add(2, self.index, share * self.weight)
        slopes = torch.split(dense, list(self.sources.values()), 2)
        return Plane(self.column, self.real, dict(zip(self.sources, slopes, strict=True)), const)

    def _box(self, bounds: NeuronBounds) -> Interval:
        """Of all values of the sources, in the boxes of the groups: both ends (G, n)."""
        layout = bounds.layout
        lows, highs = [], []
        for j in self.sources:
            if j == layout.path.root:
                low, high = bounds.root[0][self.image], bounds.root[1][self.image]
            else:
                node, place = layout.activation(j), layout.places[j]
                low, high = (end[self.image][:, place].view(-1, *node.shape) for end in (bounds.lower, bounds.upper))
                low, high = node.interval((low, high))
            lows.append(low.flatten(1))
            highs.append(high.flatten(1))
        return torch.cat(lows, 1), torch.cat(highs, 1)

    def _ends(self, bounds: NeuronBounds) -> Interval:
        neuron = self.column + bounds.layout.places[self.act].start
        return bounds.lower[self.image].gather(1, neuron), bounds.upper[self.image].gather(1, neuron)


def _wide(values: Tensor, *sizes: int) -> Tensor:
    """(G, a, ...) filled up with zeros to (G, *sizes)."""
    pads = [
        width
        for size, have in zip(reversed(sizes), reversed(values.shape[1:]), strict=True)
        for width in (0, size - have)
    ]
    return F.pad(values, pads)


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
