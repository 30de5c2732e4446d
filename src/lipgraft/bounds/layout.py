"""All neurons that matter to one target, side by side on one axis, and their bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.activations import Curve
from lipgraft.bounds.geometry import Plan, dense_plan
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.neurons import positions
from lipgraft.bounds.reach import Reach
from lipgraft.bounds.relaxations import unstable
from lipgraft.bounds.sound import Rounding
from lipgraft.network.graph import Activation, Graft, Input, Network, Planar
from lipgraft.rounding import round_down, round_up

CURVE_LIVE = 3  # how many times as many numbers as a kink a curve keeps for its lines and their gradient, about


@dataclass(frozen=True, eq=False)
class Layout:
    """places[i]: where the neurons of activation i stand on the flat axis of `size` neurons.

    Flat tensors that are written to by neuron have one more column, `size`, which stands for "no neuron".
    """

    network: Network
    path: Plan
    places: dict[int, slice]
    size: int

    @staticmethod
    def of(network: Network, target: int) -> Layout:
        """The activations between the input and node `target`."""
        path = dense_plan(network, target)
        places: dict[int, slice] = {}
        size = 0
        for i, node in network.activations():
            if i in path.windows and i > path.root:
                places[i] = slice(size, size + math.prod(node.shape))
                size = places[i].stop
        return Layout(network, path, places, size)

    @property
    def floats(self) -> int:
        """Numbers that one row with lines of its own takes, about."""
        return max(self.size * (CURVE_LIVE if self.curved else 1), self.path.floats)

    def activation(self, i: int) -> Activation:
        node = self.network.nodes[i]
        assert isinstance(node, Activation)
        return node

    def flat(self, values: Mapping[int, Tensor]) -> Tensor:
        """{activation: (B, ..., *shape)} -> (B, size); the axes between are of length 1."""
        parts = [values[i].flatten(1) for i in self.places]
        return torch.cat(parts, 1)

    def pieces(self, flat: Tensor, rows: int = 1) -> dict[int, Tensor]:
        """(B rows, size or more) -> {activation: (B, 1, rows, *shape)}."""
        # One split, whose gradient is one copy; that of a slice would be as large as `flat`.
        sizes = [place.stop - place.start for place in self.places.values()]
        parts = flat.split_with_sizes([*sizes, flat.shape[1] - self.size], 1)
        return {
            i: part.reshape(-1, 1, rows, *self.network.nodes[i].shape)
            for i, part in zip(self.places, parts[:-1], strict=True)
        }

    @cached_property
    def curved(self) -> list[int]:
        """The activations whose lines a slope at zero does not describe, as a sigmoid's."""
        return [
            i for i in self.places if not is_line(self.activation(i)) and not self.activation(i).curve.splits_at_zero
        ]

    @cached_property
    def curves(self) -> dict[Curve, Tensor]:
        """Their curves, each with the neurons that have it: (size + 1,), boolean."""
        out: dict[Curve, Tensor] = {}
        for i in self.curved:
            none = torch.zeros(self.size + 1, dtype=torch.bool, device=self._like().device)
            out.setdefault(self.activation(i).curve, none)[self.places[i]] = True
        return out

    @cached_property
    def kinks(self) -> dict[int, Tensor]:
        """The activations that bend at zero alone, one of each curve, with the neurons that have it: (size + 1,)."""
        out: dict[int, Tensor] = {}
        for i in self.places:
            if i not in self.curved:
                same = next((j for j in out if self.activation(j).curve == self.activation(i).curve), i)
                none = torch.zeros(self.size + 1, dtype=torch.bool, device=self._like().device)
                out.setdefault(same, none)[self.places[i]] = True
        return out

    @cached_property
    def is_curved(self) -> Tensor:
        """(size + 1,): whether a neuron belongs to one of these."""
        return torch.stack(list(self.curves.values())).any(0)

    @cached_property
    def parameters(self) -> int:
        """The most free parameters that the lines of a neuron have."""
        zero = torch.zeros(1)
        return max((len(self.activation(i).curve.start(zero, zero)) for i in self.curved), default=1)

    @cached_property
    def negative_slope(self) -> Tensor:
        """(size + 1,): the slope of each activation left of zero."""
        out = self._like().new_zeros(self.size + 1)
        for i, place in self.places.items():
            out[place] = left_slope(self.activation(i))
        return out

    @cached_property
    def bias(self) -> Tensor:
        """(size + 1,): each pre-activation's value when all activations, products and the input are zero."""
        zero = self._like()
        values: list[Tensor] = []
        for node in self.network.nodes:
            if isinstance(node, Input | Activation | Planar):
                values.append(zero.new_zeros(1, *node.shape))
            else:
                values.append(node.forward(*(values[j] for j in node.inputs)))
        out = zero.new_zeros(self.size + 1)
        for i, place in self.places.items():
            out[place] = values[self.network.nodes[i].inputs[0]].flatten()
        return out

    def _like(self) -> Tensor:
        """Some floating-point tensor of the network: its device and dtype are those of all work."""
        tensors = (t for node in self.network.nodes for t in vars(node).values() if isinstance(t, Tensor))
        return next((t for t in tensors if t.is_floating_point()), torch.zeros(()))


@dataclass(frozen=True, eq=False)
class NeuronBounds:
    """The pre-activation bounds of I boxes on the layout's flat axis of N neurons.

    root: the interval of the input-like root, each end (I, *root shape).
    lower, upper: (I, N + 1), zero in the last column.
    open: (I, U), the neurons whose lines are free to choose (unstable, not grafted), filled up with N.
    errors: see `Relaxed`.
    slack, target_slack: of sound bounds, what rounding may cost a bound per unit of a neuron's multiplier, (I, N + 1),
        and per unit of the target's coefficients, (I, *target shape); None where nobody asks.
    grafts: lines that differ from box to box, (I, *shape) each, by the activation's position; none: the network's own.
    known: anchors that somebody knows already; see `anchors`.
    reach: by the activation's position, between which functions of the root its neurons lie, where somebody knows.
    """

    layout: Layout
    root: Interval
    lower: Tensor
    upper: Tensor
    open: Tensor
    slack: Tensor | None = None
    target_slack: Tensor | None = None
    errors: Mapping[int, Tensor] = field(default_factory=dict)
    grafts: Mapping[int, Graft] = field(default_factory=dict)
    known: Mapping[int, Tensor] | None = None
    reach: Mapping[int, Reach] = field(default_factory=dict)

    @staticmethod
    def of(
        layout: Layout,
        intervals: Sequence[Interval],
        rounding: Rounding | None = None,
        errors: Mapping[int, Tensor] | None = None,
    ) -> NeuronBounds:
        """intervals: of every node of the network, as `bounds.crown.Prepared` holds them; so rounding and errors."""
        root = intervals[layout.path.root]
        nodes = {i: layout.activation(i) for i in layout.places}
        pre = {i: intervals[node.inputs[0]] for i, node in nodes.items()}
        target = layout.path.target
        empty = root[0].new_zeros(len(root[0]), 0)
        flat = layout.flat if nodes else lambda _: empty
        slack = None
        if rounding is not None:
            slack = F.pad(flat({i: rounding.slack(node.inputs[0], target) for i, node in nodes.items()}), (0, 1))
        planes = {
            i: node.plane(*(intervals[j] for j in node.inputs))
            for i, node in enumerate(layout.network.nodes)
            if isinstance(node, Planar) and i in layout.path.windows
        }
        loose = flat({i: unstable(node, *pre[i]) for i, node in nodes.items()}).bool()
        return NeuronBounds(
            layout=layout,
            root=root,
            lower=F.pad(flat({i: ends[0] for i, ends in pre.items()}), (0, 1)),
            upper=F.pad(flat({i: ends[1] for i, ends in pre.items()}), (0, 1)),
            open=positions(loose, layout.size)[0],
            slack=slack,
            target_slack=None if rounding is None else rounding.slack(target),
            errors=planes | {i: error for i, error in (errors or {}).items() if i in layout.path.windows},
        )

    @cached_property
    def anchors(self) -> dict[int, Tensor]:
        """By the activation's position, what `Curve.anchors` says of these boxes: (m, I, *shape) each.

        Bounds that are narrowed later may keep them.
        """
        if self.known is not None:
            return dict(self.known)
        lower, upper = self.layout.pieces(self.lower), self.layout.pieces(self.upper)
        found = {i: self.layout.activation(i).curve.anchors(lower[i][:, 0, 0], upper[i][:, 0, 0]) for i in lower}
        return {i: anchors for i, anchors in found.items() if anchors is not None}

    def searched(self, layout: Layout, dtype: torch.dtype) -> NeuronBounds:
        """Sound bounds as a search in another type sees them: the same numbers, and none that speak of rounding."""
        root = round_down(self.root[0], dtype), round_up(self.root[1], dtype)
        errors = {i: error.to(dtype) for i, error in self.errors.items()}
        grafts = {i: Graft(g.mask, g.gamma.to(dtype), g.omega.to(dtype)) for i, g in self.grafts.items()}
        lower, upper = self.lower.to(dtype), self.upper.to(dtype)
        known = None if self.known is None else {i: anchors.to(dtype) for i, anchors in self.known.items()}
        reach = {i: found.to(dtype) for i, found in self.reach.items()}
        return NeuronBounds(
            layout, root, lower, upper, self.open, errors=errors, grafts=grafts, known=known, reach=reach
        )

    def activation(self, i: int, boxes: Tensor) -> Activation:
        """Activation i with the lines that its neurons have in these boxes, (B,), for values (B, 1, rows, *shape)."""
        node = self.layout.activation(i)
        if i not in self.grafts:
            return node
        mask, gamma, omega = (
            t[boxes][:, None, None] for t in (self.grafts[i].mask, self.grafts[i].gamma, self.grafts[i].omega)
        )
        return replace(node, graft=Graft(mask, gamma, omega))

    def to(self, device: torch.device | str) -> NeuronBounds:
        """The same numbers elsewhere; the layout is not moved."""
        slack = None if self.slack is None else self.slack.to(device)
        target = None if self.target_slack is None else self.target_slack.to(device)
        errors = {i: error.to(device) for i, error in self.errors.items()}
        grafts = {i: Graft(*(t.to(device) for t in (g.mask, g.gamma, g.omega))) for i, g in self.grafts.items()}
        root = (self.root[0].to(device), self.root[1].to(device))
        lower, upper, open_ = (t.to(device) for t in (self.lower, self.upper, self.open))
        reach = {i: found.to(device) for i, found in self.reach.items()}
        return NeuronBounds(self.layout, root, lower, upper, open_, slack, target, errors, grafts, reach=reach)

    @staticmethod
    def cat(parts: Sequence[NeuronBounds]) -> NeuronBounds:
        """All boxes of several groups."""
        width = max(part.open.shape[1] for part in parts)
        size = parts[0].layout.size

        def joined(tensors: list[Tensor | None]) -> Tensor | None:
            known = [tensor for tensor in tensors if tensor is not None]
            return torch.cat(known) if known else None

        return NeuronBounds(
            layout=parts[0].layout,
            root=(torch.cat([p.root[0] for p in parts]), torch.cat([p.root[1] for p in parts])),
            lower=torch.cat([p.lower for p in parts]),
            upper=torch.cat([p.upper for p in parts]),
            open=torch.cat([F.pad(p.open, (0, width - p.open.shape[1]), value=size) for p in parts]),
            slack=joined([p.slack for p in parts]),
            target_slack=joined([p.target_slack for p in parts]),
            errors={i: torch.cat([p.errors[i] for p in parts]) for i in parts[0].errors},
            grafts={i: _joined([p.grafts[i] for p in parts]) for i in parts[0].grafts},
            reach={
                i: Reach.cat([p.reach[i] for p in parts]) for i in parts[0].reach if all(i in p.reach for p in parts)
            },
        )

    def at(self, boxes: Tensor) -> NeuronBounds:
        """Some of the boxes. boxes: an index or a boolean mask."""
        root = (self.root[0][boxes], self.root[1][boxes])
        slack = None if self.slack is None else self.slack[boxes]
        target = None if self.target_slack is None else self.target_slack[boxes]
        errors = {i: error[boxes] for i, error in self.errors.items()}
        grafts = {i: Graft(g.mask[boxes], g.gamma[boxes], g.omega[boxes]) for i, g in self.grafts.items()}
        reach = {i: found.at(boxes) for i, found in self.reach.items()}
        ends, open_ = (self.lower[boxes], self.upper[boxes]), self.open[boxes]
        return NeuronBounds(self.layout, root, *ends, open_, slack, target, errors, grafts, reach=reach)


def _joined(parts: Sequence[Graft]) -> Graft:
    return Graft(*(torch.cat([getattr(part, name) for part in parts]) for name in ("mask", "gamma", "omega")))


def left_slope(node: Activation) -> float:
    """The slope left of zero; a smooth curve has none, and stands here only when it is grafted throughout."""
    return node.curve.slopes[0] if node.curve.splits_at_zero else 0.0


def is_line(node: Activation) -> bool:
    """Whether all of its neurons are grafted."""
    return node.graft is not None and bool(node.graft.mask.all())
