"""Planes in all layers of curves that are exact at one place of a box.

The two functions that bounds of a neuron leave behind (`Reach`) are each exact somewhere, but not at the same place, and
what they are apart at the place of a margin is lost. Functions can be made for the place instead: planes in the first
layer that are exact there give functions below and above a neuron of the second layer that meet there, so planes around
its curve are exact there as well; these give functions of the third layer, and so on. Nothing is optimised. A neuron of
a convolution is bounded in its window. This costs two rows for every neuron, so it is for single margins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.corners import first_curve
from lipgraft.bounds.geometry import interval_is_exact
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds, is_line
from lipgraft.bounds.memory import fitting
from lipgraft.bounds.reach import Known, Reach, WindowReach
from lipgraft.bounds.sound import Rounding
from lipgraft.bounds.window_network import WindowNetwork
from lipgraft.bounds.windows import cut
from lipgraft.network.graph import Network

MOST = 2**12  # rows at once
LARGEST = 2**24  # coefficients of a layer


def meeting(
    network: Network, intervals: Sequence[Interval], place: Tensor, rounding: Rounding | None = None
) -> dict[int, Known]:
    """By activation behind the first layer, functions around its neurons in one box that meet at a place, where they can
    be had. intervals: of all nodes, each end (1, *shape); place: (1, *root shape), in [0, 1]; rounding: of sound bounds.
    """
    root, exact = Layout.of(network, network.output).path.root, interval_is_exact(network)
    out: dict[int, Known] = {}
    for i, act in network.activations():
        target = act.inputs[0]
        if i > network.output or exact[target] or not act.curve.through_upper or is_line(act):
            continue
        if len(act.shape) == 3:
            found: Known | None = _of_convolution(network, target, root, intervals, place, rounding)
        else:
            found = _of_vector(network, target, root, intervals, place, rounding, out)
        if found is not None:
            out[i] = found
    return out


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
    for some in rows.split(fitting(layout.floats, place.device, place.dtype, MOST)):
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
    for some in everyone.split(fitting(window.layout.floats, place.device, place.dtype, MOST)):
        bounds = window.bounds(intervals, torch.zeros_like(some), some, rounding)
        ones = torch.ones(len(some), dtype=place.dtype, device=place.device)
        box = torch.arange(len(some), device=place.device)
        functions = [LowerBound(bounds, box, window.rows(some, side * ones)) for side in (1.0, -1.0)]
        parts.append(_both(functions, here[some % places], {}))
    low, low_const, high, high_const = (torch.cat(some) for some in zip(*parts, strict=True))
    low, high = (rows.view(-1, places, rows.shape[1]).transpose(0, 1).contiguous() for rows in (low, high))
    return WindowReach(low, low_const, high, high_const, torch.where(index < 0, values, index), values)


def _both(functions: list[LowerBound], place: Tensor, known: Mapping[int, Known]) -> tuple[Tensor, ...]:
    """Slopes and constants below and above neurons: functions of the neurons and of their negatives."""
    below, above = (
        planes.linear(planes.start(), planes.no_splits()) for planes in (f.exact_at(place, None, known) for f in functions)
    )
    return below[0], below[1], -above[0], -above[1]
