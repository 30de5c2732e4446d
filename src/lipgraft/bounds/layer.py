"""One layer's pre-activation bounds, tightened by backward substitution where that matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import get_ident

import torch
from torch import Tensor

from lipgraft.bounds.backward import Relaxed
from lipgraft.bounds.geometry import plan
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.memory import Late, chunked, never
from lipgraft.bounds.neurons import neuron_bounds, positions
from lipgraft.bounds.numerics import guard_lower, guard_upper
from lipgraft.bounds.relaxations import Lines, unstable
from lipgraft.network.graph import Activation, Network
from lipgraft.network.nodes import Cache

Work = Callable[[slice, Tensor, Tensor], Tensor]
"""(problems, index (B, S), signs (B, G, S)) -> lower bounds of sign * neuron, (B, G, S)."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The node `target`, read by activations, over earlier nodes whose intervals and lines are known.

    inner: (B, *shape), the node's value at the centre of each box. late: once it holds, nothing more is tightened.
    errors: see `Relaxed`.
    """

    network: Network
    target: int
    readers: list[Activation]
    intervals: list[Interval]
    lines: dict[int, Lines]
    inner: Tensor
    late: Late = never
    errors: Mapping[int, Tensor] = field(default_factory=dict)

    def refined(self, interval: Interval, *, everything: bool) -> Interval:
        """Both bounds of every neuron, or what the activations need of it.

        One bound settles a ReLU: a neuron that is positive somewhere in the box can be stable only by a positive lower
        bound, and the upper one then does not matter. So the telling side comes first, and the other side only for
        neurons that are unstable still.
        """
        path, work = plan(self.network, self.target), self._work()
        if everything:
            return self.both(interval, torch.ones_like(self.inner, dtype=torch.bool))
        index, real = self._needed(interval)
        if not all(act.curve.one_sided for act in self.readers):
            return self._tightened(interval, index, self._both(index) * real, path.floats, work)
        telling = torch.where(self.inner.flatten(1) > 0, 1.0, -1.0).to(self.inner)
        interval = self._tightened(interval, index, telling.gather(1, index).unsqueeze(1) * real, path.floats, work)
        index, real = self._needed(interval)
        return self._tightened(interval, index, -telling.gather(1, index).unsqueeze(1) * real, path.floats, work)

    def both(self, interval: Interval, wanted: Tensor) -> Interval:
        """Both bounds of the wanted neurons, (B, *shape), boolean."""
        index, real = positions(wanted.flatten(1))
        signs = self._both(index) * real.unsqueeze(1).to(self.inner)
        return self._tightened(interval, index, signs, plan(self.network, self.target).floats, self._work())

    def _work(self) -> Work:
        """Bounds by backward substitution."""
        path = plan(self.network, self.target)
        kept: dict[int, tuple[slice, Relaxed]] = {}  # by thread
        kernels: Cache = {}

        def work(problems: slice, index: Tensor, signs: Tensor) -> Tensor:
            before, relaxed = kept.get(get_ident(), (None, None))
            if relaxed is None or before != problems:
                lower, upper = self.intervals[path.root]
                below = {i: line.at(problems) for i, line in self.lines.items() if i in path.windows}
                errors = {i: error[problems] for i, error in self.errors.items() if i in path.windows}
                relaxed = Relaxed(below, (lower[problems], upper[problems]), kernels=kernels, errors=errors)
                kept[get_ident()] = problems, relaxed
            return neuron_bounds(self.network, path, relaxed, index, signs)

        return work

    def _needed(self, interval: Interval) -> tuple[Tensor, Tensor]:
        """Places of the neurons that some activation finds unstable, (B, S); 1 for them, 0 for fillers, (B, 1, S)."""
        wanted = torch.stack([unstable(act, *interval) for act in self.readers]).any(0).flatten(1)
        index, real = positions(wanted)
        return index, real.unsqueeze(1).to(self.inner)

    def _both(self, index: Tensor) -> Tensor:
        signs = torch.tensor([1.0, -1.0], dtype=self.inner.dtype, device=self.inner.device)
        return signs[:, None].expand(len(index), 2, index.shape[1])

    def _tightened(self, interval: Interval, index: Tensor, signs: Tensor, floats: int, bounds: Work) -> Interval:
        """The interval cut with the bounds of these neurons: index (B, S), signs (B, G, S), 0 for none at all."""
        shape = interval[0].shape
        lb, ub = (end.flatten(1).clone() for end in interval)
        counts = (signs != 0).any(1).sum(1).tolist()  # real rows stand before fillers

        def work(problems: slice, rows: slice) -> None:
            rows = slice(rows.start, min(rows.stop, max(counts[problems])))
            if self.late() or rows.start >= rows.stop:
                return
            here, sign = index[problems, rows], signs[problems, :, rows]
            bound = bounds(problems, here, sign)
            low = torch.where(sign > 0, guard_lower(bound), -torch.inf).amax(1)
            high = torch.where(sign < 0, guard_upper(-bound), torch.inf).amin(1)
            lb[problems].scatter_reduce_(1, here, low, "amax")
            ub[problems].scatter_reduce_(1, here, high, "amin")

        chunked(len(lb), index.shape[1], floats * signs.shape[1] * lb.element_size(), lb.device, work, parallel=True)
        return lb.view(shape), ub.view(shape)
