"""Planes in all layers of curves that are exact at one place of a box.

The two functions that bounds of a neuron leave behind (`Reach`) are each exact somewhere, but not at the same place,
and what they are apart at the place of a margin is lost. Functions can be made for the place instead: planes in the
first layer that are exact there give functions below and above a neuron of the second layer that meet there, so planes
around its curve are exact there as well; these give functions of the third layer, and so on. A neuron of a convolution
is bounded in its window. This costs two rows for every neuron, so it is for single margins.

Where intervals are wide, planes in all layers together bend so much that most inputs would rather be elsewhere. So each
neuron takes a share of its plane and the rest of its line, and `fitted` looks for the shares, lines and place that are
best for a margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.ascent import Adam
from lipgraft.bounds.corners import balanced, first_curve
from lipgraft.bounds.geometry import interval_is_exact
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds, is_line
from lipgraft.bounds.memory import Late, fitting, never
from lipgraft.bounds.reach import Known, Reach, WindowReach
from lipgraft.bounds.sound import Rounding, guard_lower
from lipgraft.bounds.window_network import WindowNetwork
from lipgraft.bounds.windows import cut
from lipgraft.network.graph import Network

MOST = 2**12  # rows at once
LARGEST = 2**24  # coefficients of a layer
STEPS, DECAY = 30, 0.95  # of a fit
LR_SHARE, LR_ALPHA, TOWARDS = 0.1, 0.05, 0.3  # sizes of its steps; the last is the share of the way to a better place


def meeting(
    network: Network, intervals: Sequence[Interval], place: Tensor, rounding: Rounding | None = None
) -> dict[int, Known]:
    """By activation behind the first layer, functions around its neurons in one box that meet at a place.

    intervals: of all nodes, each end (1, *shape); place: (1, *root shape), in [0, 1]; rounding: of sound bounds.
    """
    root, exact = Layout.of(network, network.output).path.root, interval_is_exact(network)
    out: dict[int, Known] = {}
    for i, act in network.activations():
        target = act.inputs[0]
        if i > network.output or exact[target] or not act.curve.through_upper or is_line(act):
            continue
        found: Known | None = None
        if len(act.shape) == 3:
            found = _of_convolution(network, target, root, intervals, place, rounding)
        elif len(act.shape) == 1:
            found = _of_vector(network, target, root, intervals, place, rounding, out)
        if found is not None:
            out[i] = found
    return out


def joined(parts: Sequence[Mapping[int, Known]]) -> dict[int, Known]:
    """The same of several boxes of one network."""
    out: dict[int, Known] = {}
    for i in parts[0]:
        windows = [found for part in parts if isinstance(found := part[i], WindowReach)]
        whole = [found for part in parts if isinstance(found := part[i], Reach)]
        out[i] = WindowReach.cat(windows) if windows else Reach.cat(whole)
    return out


@dataclass(frozen=True, eq=False)
class Fit:
    """Of B margins. place: (B, *root shape); alpha: (B, U k); share: by activation; bound: (B,), what they give."""

    place: Tensor
    alpha: Tensor
    share: Mapping[int, Tensor]
    bound: Tensor

    def or_better(self, other: Fit) -> Fit:
        """The other where its bound is better."""
        better = other.bound > self.bound

        def chosen(mine: Tensor, its: Tensor) -> Tensor:
            return torch.where(better.view(-1, *[1] * (mine.ndim - 1)), its, mine)

        share = {i: chosen(mine, other.share[i]) for i, mine in self.share.items()}
        place, alpha = chosen(self.place, other.place), chosen(self.alpha, other.alpha)
        return Fit(place, alpha, share, chosen(self.bound, other.bound))

    def planes(self, function: LowerBound, known: Mapping[int, Known]) -> LowerBound:
        """The function with these planes."""
        return function.exact_at(self.place, None, known).sharing(self.share)


def fitted(function: LowerBound, place: Tensor, alpha: Tensor, known: Mapping[int, Known], late: Late = never) -> Fit:
    """The best of some steps from half a plane in every neuron. function: with lines, of one margin in each box.

    late: ends the steps.
    """
    none, root = function.no_splits(), function.layout.path.root
    share = {i: torch.full_like(ends[0], 0.5) for i, ends in function.pre.items()}
    climb, climb_alpha = {i: Adam(part) for i, part in share.items()}, Adam(alpha)
    best = Fit(place, alpha, share, torch.full_like(function.base[:, 0], -torch.inf))
    scale = 1.0
    for _ in range(STEPS):
        planes = function.exact_at(place, None, known)
        free = {i: share[i].detach().requires_grad_() for i in planes.hinged}
        lines, record = alpha.detach().requires_grad_(), dict[int, Tensor]()
        with torch.enable_grad():
            bound, rows = planes.sharing(free).value(lines, none, record)
            gradient = torch.autograd.grad(bound.sum(), [*free.values(), lines], materialize_grads=True)
        best = best.or_better(Fit(place, alpha, share, guard_lower(bound.detach())))
        better = balanced(rows.detach(), record[root].detach(), place)
        place = place + TOWARDS * (better - place)
        for i, slope in zip(free, gradient, strict=False):
            share = share | {i: (share[i] + LR_SHARE * scale * climb[i].direction(slope)).clamp(0, 1)}
        alpha = (alpha + LR_ALPHA * scale * climb_alpha.direction(gradient[-1])).clamp(0, 1)
        scale *= DECAY
        if late():
            break
    return best


def _of_vector(
    network: Network,
    target: int,
    root: int,
    intervals: Sequence[Interval],
    place: Tensor,
    rounding: Rounding | None,
    known: Mapping[int, Known],
) -> Reach | None:
    layout = Layout.of(network, target)
    count = network.nodes[target].shape[0]
    if layout.path.root != root or first_curve(layout) is None or count * place.numel() > LARGEST:
        return None
    bounds = NeuronBounds.of(layout, intervals, rounding)
    known = {i: found for i, found in known.items() if i in layout.places}
    parts: list[tuple[Tensor, ...]] = []
    rows = torch.eye(count, dtype=place.dtype, device=place.device)[:, None, None]
    windows = max((found.index.numel() for found in known.values() if isinstance(found, WindowReach)), default=1)
    most = max(1, min(MOST, LARGEST // windows))
    for some in torch.split(rows, fitting(layout.floats, place.device, place.dtype, most)):
        box = torch.zeros(len(some), dtype=torch.int64, device=place.device)
        where = place.expand(len(some), *place.shape[1:])
        parts.append(_both([LowerBound(bounds, box, side * some) for side in (1.0, -1.0)], where, known))
    return Reach(*(torch.cat(some)[None] for some in zip(*parts, strict=True)))


def _of_convolution(
    network: Network, target: int, root: int, intervals: Sequence[Interval], place: Tensor, rounding: Rounding | None
) -> WindowReach | None:
    window = WindowNetwork.of(network, target, curves=True)
    if window is None or window.path.root != root or first_curve(window.layout) is None:
        return None
    seen, grid = window.path.windows[root], window.path.grid
    assert seen is not None
    values, places = place.numel(), grid[0] * grid[1]
    count = network.nodes[target].shape[0] * places
    here = cut(place, seen, grid)[0]
    if count * here.shape[1] > LARGEST:
        return None
    number = torch.arange(1, values + 1, dtype=torch.float64, device=place.device).view_as(place)
    index = cut(number, seen, grid)[0].long() - 1
    parts: list[tuple[Tensor, ...]] = []
    everyone = torch.arange(count, device=place.device)
    for some in torch.split(everyone, fitting(window.layout.floats, place.device, place.dtype, MOST)):
        bounds = window.bounds(intervals, torch.zeros_like(some), some, rounding)
        ones = torch.ones(len(some), dtype=place.dtype, device=place.device)
        box = torch.arange(len(some), device=place.device)
        functions = [LowerBound(bounds, box, window.rows(some, side * ones)) for side in (1.0, -1.0)]
        parts.append(_both(functions, here[some % places], {}))
    low, low_const, high, high_const = (torch.cat(some) for some in zip(*parts, strict=True))
    low, high = (rows.view(-1, places, rows.shape[1]).transpose(0, 1).contiguous()[None] for rows in (low, high))
    index = torch.where(index < 0, values, index)
    return WindowReach(low, low_const[None], high, high_const[None], index, values)


def _both(functions: list[LowerBound], place: Tensor, known: Mapping[int, Known]) -> tuple[Tensor, ...]:
    """Slopes and constants below and above neurons: functions of the neurons and of their negatives."""
    planes = [function.exact_at(place, None, known) for function in functions]
    below, above = (function.linear(function.start(), function.no_splits()) for function in planes)
    return below[0], below[1], -above[0], -above[1]
