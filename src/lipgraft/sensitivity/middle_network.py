"""The Jacobian as a linear function of what is not known about it.

An activation's derivative d lies in [m - r, m + r]. With g the adjoint of the activation's output, the adjoint of its
input is d g = m g + e, where the remainder e is unknown but |e| <= r |g|. Taken together, over every neuron with r > 0,

    t = t_m + e V          the row of the Jacobian
    g = g_m + e B          the adjoints of those neurons themselves

where t_m and g_m are what the network gives when every derivative is its middle m, V holds the rows of that middle
network from each neuron to the input, and B those from each neuron to the earlier ones. t_m, V, B need no relaxation: a
remainder is carried back through the layers with its sign, and nothing is lost until the remainders are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.network.graph import Activation, Affine, Input, Network
from lipgraft.network.nodes import Cache
from lipgraft.sensitivity.chain_rule import walk_back


@dataclass(frozen=True, eq=False)
class Uncertain:
    """Neurons of one activation whose derivative is not known, in every problem as many.

    position: of the activation. index: (B, S), flat places in the layer. radius: (B, S), r; 0 where a problem has fewer
    than S such neurons. span: their numbers among all uncertain neurons. kept: whether they are bounded together.
    """

    position: int
    index: Tensor
    radius: Tensor
    span: slice
    kept: bool

    def pick(self, layer: Tensor) -> Tensor:
        """These neurons' elements of (B or 1, K, *shape): (B, K, S)."""
        flat = layer.flatten(2).expand(len(self.index), -1, -1)
        return flat.gather(2, self.index.unsqueeze(1).expand(-1, flat.shape[1], -1))

    def at(self, problems: slice) -> Uncertain:
        return replace(self, index=self.index[problems], radius=self.radius[problems])


@dataclass(frozen=True, eq=False)
class Middle:
    """The middle network: centre is m of every activation, by position, (B, *shape).

    groups: the uncertain neurons, in topological order; those that are kept have the first numbers.
    """

    network: Network
    centre: dict[int, Tensor]
    groups: tuple[Uncertain, ...]
    cache: Cache = field(default_factory=dict)

    @staticmethod
    def of(network: Network, slopes: Mapping[int, Interval], kept: Mapping[int, Tensor]) -> Middle:
        """slopes: the range of every activation's derivative, by position. kept: booleans (B, size of the layer)."""
        centre = {i: (low + high) / 2 for i, (low, high) in slopes.items()}
        radius = {i: ((high - low) / 2).flatten(1) for i, (low, high) in slopes.items()}
        groups: list[Uncertain] = []
        start = 0
        for choose in (True, False):
            for i in sorted(slopes):
                wanted = (radius[i] != 0) & (kept[i] == choose)
                count = int(wanted.sum(1).max())
                if count:
                    index = wanted.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
                    r = torch.where(wanted, radius[i], 0.0).gather(1, index)
                    groups.append(Uncertain(i, index, r, slice(start, start + count), choose))
                    start += count
        return Middle(network, centre, tuple(sorted(groups, key=lambda group: group.position)))

    def count(self, *, kept: bool) -> int:
        """How many neurons have a number; or only of those kept. Padding counts."""
        return max((group.span.stop for group in self.groups if group.kept or not kept), default=0)

    def back(self, rows: Tensor, position: int, problems: slice, arrivals: dict[int, Tensor]) -> Tensor:
        """Rows at a node, (B, K, *shape), as rows at the input: (B, K, *input_shape), for some of the problems.

        arrivals: filled with the adjoint of every activation's output on the way, by position.
        """

        def gate(i: int, node: Activation, g: Tensor) -> Tensor:
            arrivals[i] = g
            return g * self.centre[i][problems].unsqueeze(1)

        end = walk_back(self.network, rows, lambda node, g, shape: node.transpose(g, shape, self.cache), gate, position)
        if end is None:
            return rows.new_zeros(*rows.shape[:2], *self.network.input_shape)
        return end.expand(problems.stop - problems.start, *end.shape[1:])

    def forward(self, change: Tensor) -> Tensor:
        """What a change of the input does to every uncertain neuron, V a' for a change a.

        change: (B, K, *input_shape) -> (B, K, N). It passes through the network without its constants.
        """
        lead = change.shape[:2]
        felt: dict[int, Tensor] = {}
        values: list[Tensor] = []
        for i, node in enumerate(self.network.nodes[: self.groups[-1].position + 1]):
            inputs = [values[j] for j in node.inputs]
            if isinstance(node, Input):
                value = change.flatten(0, 1)
            elif isinstance(node, Activation):
                felt[i] = inputs[0].reshape(*lead, *node.shape)
                value = (felt[i] * self.centre[i].unsqueeze(1)).flatten(0, 1)
            else:
                assert isinstance(node, Affine)
                value = node.linear(*inputs)
            values.append(value)
        in_order = sorted(self.groups, key=lambda group: group.span.start)
        return torch.cat([group.pick(felt[group.position]) for group in in_order], 2)

    def row_floats(self, position: int) -> int:
        """Numbers alive at once for one row that starts at this node, about."""
        sizes = [math.prod(node.shape) for node in self.network.nodes[: position + 1]]
        return max(a + b for a, b in zip(sizes, [0, *sizes], strict=False))


PROBES = 4
"""Random changes of the input by which a neuron's effect is guessed."""


def effects(network: Network, slopes: Mapping[int, Interval], rows: Tensor, weight: Tensor) -> dict[int, Tensor]:
    """r |g| times what random changes of the input do to the neuron; 0 where its derivative is known.

    rows: (B, K, outputs) at the output. Returns (B, size of the layer) by the activation's position.
    """
    middle = Middle.of(
        network, slopes, {i: torch.zeros_like(low.flatten(1), dtype=torch.bool) for i, (low, _) in slopes.items()}
    )
    out = {i: torch.zeros_like(low.flatten(1)) for i, (low, _) in slopes.items()}
    if not middle.groups:
        return out
    arrivals: dict[int, Tensor] = {}
    middle.back(rows, network.output, slice(0, len(rows)), arrivals)
    generator = torch.Generator(rows.device).manual_seed(0)
    shape = (1, PROBES, *network.input_shape)
    noise = torch.rand(shape, dtype=rows.dtype, device=rows.device, generator=generator).round() * 2 - 1
    felt = middle.forward((noise * weight).expand(len(rows), -1, *network.input_shape)).abs().mean(1)
    for group in middle.groups:
        if group.position in arrivals:
            largest = group.pick(arrivals[group.position]).abs().amax(1)
            # A neuron that no probe moves still counts for something.
            effect = group.radius * largest * (felt[:, group.span] + 1e-12)
            out[group.position].scatter_(1, group.index, effect)
    return out


def strongest(effect: Mapping[int, Tensor], limit: int) -> dict[int, Tensor]:
    """Marks the neurons with the largest effects, at most so many for each problem: booleans as `effect`."""
    sizes = [e.shape[1] for e in effect.values()]
    joined = torch.cat(list(effect.values()), 1)
    top = joined.topk(min(limit, joined.shape[1]), 1).indices
    marks = torch.zeros_like(joined, dtype=torch.bool).scatter_(1, top, True)
    return dict(zip(effect, torch.split(marks & (joined > 0), sizes, 1), strict=True))
