"""Optimised bounds of hidden neurons, before margins are optimised and branched on.

A neuron's bound is a subproblem like a margin's: its row starts at the pre-activation instead of the output, and its
lines are its own. Layers are done in order, each with the improved bounds of those before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import LowerBound, coded, decoded
from lipgraft.bounds.ascent import AlphaSettings, optimise
from lipgraft.bounds.corners import first_curve
from lipgraft.bounds.geometry import interval_is_exact
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.memory import Late, fitting, never
from lipgraft.bounds.reach import Reach
from lipgraft.bounds.relaxations import unstable
from lipgraft.bounds.sound import Rounding, below
from lipgraft.bounds.window_network import WindowNetwork
from lipgraft.network.graph import Activation, Network

WINDOWS = 2**15  # neurons of a convolution that are bounded at once
FEWER = 5  # times fewer steps for lines where there are planes, which gain most of what there is to gain without any
PLACES = 1  # steps to a better place for the planes of a neuron


@dataclass(frozen=True, eq=False)
class Improved:
    """Bounds of neurons of node `target` that optimised lines have improved: P of them.

    image, neuron: (P,), whose bounds; side: 1.0 lower, -1.0 upper; bound: (P,), of sound numbers; code: (P, U), the
    lines, one per open neuron of the image before the target: open, (P, U), on the flat axis of `Layout.of(target)`.
    """

    target: int
    side: float
    image: Tensor
    neuron: Tensor
    bound: Tensor
    code: Tensor
    open: Tensor


@dataclass(frozen=True, eq=False)
class Sound:
    """What sound bounds need: the network in double precision, its rounding, and the hardware's errors if they count.

    keep: told of what was improved.
    """

    network: Network
    rounding: Rounding
    errors: Mapping[int, Tensor]
    keep: Callable[[Improved], None] | None = None


def refine(
    network: Network,
    intervals: list[Interval],
    which: str,
    settings: AlphaSettings,
    most: int,
    late: Late = never,
    sound: Sound | None = None,
    reach: dict[int, Reach] | None = None,
) -> list[Interval]:
    """The intervals of all nodes with tighter ones where neurons were unstable. which: "none", "vectors" or "all".

    most: neurons that are bounded at once.
    late: asked now and then; once it holds, what is left keeps the interval that it has.
    sound: the intervals are sound, of double precision, and stay so; the network is the one that lines are searched in.
    reach: filled by activation, where planes around curves will use it.
    """
    out = list(intervals)
    if which == "none" or settings.iterations == 0:
        return out
    exact = interval_is_exact(network)
    readers: dict[int, list[Activation]] = {}
    for i, act in network.activations():
        if i <= network.output:
            readers.setdefault(act.inputs[0], []).append(act)
    for target, acts in sorted(readers.items()):
        if exact[target]:
            continue
        image = len(network.nodes[target].shape) == 3
        wanted = torch.stack([unstable(act, *out[target]) for act in acts]).any(0).flatten(1)
        if which == "all" or not image:
            out[target], found = _refined(network, target, out, wanted, settings, most, late, sound)
            if reach is not None and found is not None:
                reach |= {i: found for i, act in network.activations() if act in acts and act.curve.through_upper}
        elif first_curve(Layout.of(network, target)) is not None:
            out[target] = in_windows(network, target, out, wanted, late, sound)
    return out


def _refined(
    network: Network,
    target: int,
    intervals: list[Interval],
    wanted: Tensor,
    settings: AlphaSettings,
    most: int,
    late: Late,
    sound: Sound | None,
) -> tuple[Interval, Reach | None]:
    """The interval of one node, improved at the wanted neurons, (B, n) boolean, and what is known of them beside."""
    layout = Layout.of(network, target)
    shape = network.nodes[target].shape
    if sound is None:
        proof, bounds = None, NeuronBounds.of(layout, intervals)
    else:
        proof = NeuronBounds.of(Layout.of(sound.network, target), intervals, sound.rounding, sound.errors)
        bounds = proof.searched(layout, layout.bias.dtype)
    image, neuron = torch.nonzero(wanted, as_tuple=True)
    if bounds.open.shape[1] == 0 or len(image) == 0:
        return intervals[target], None
    lower, upper = (end.flatten(1).clone() for end in intervals[target])
    size = fitting(layout.floats, lower.device, lower.dtype, most)
    # A certificate has no room for planes.
    planes = takes_planes(bounds) and (sound is None or sound.keep is None)
    values = bounds.root[0][0].numel()
    reach = None
    if planes and len(shape) == 1 and Reach.affordable(len(lower), shape[0], values, lower.device):
        reach = Reach.empty(len(lower), shape[0], values, lower)
    steps = -(-settings.iterations // FEWER) if planes else settings.iterations
    half = steps // 2 if planes else 0
    first, rest = (replace(settings, iterations=count) for count in (steps - half, half))
    inside = late if lower.device.type == "cpu" else never  # a GPU would have to wait in every step
    for end, side, best in ((lower, 1.0, torch.maximum), (upper, -1.0, torch.minimum)):
        for part in torch.split(torch.arange(len(image), device=image.device), size):
            if late():
                break
            where, which = image[part], neuron[part]
            rows = bounds.lower.new_zeros(len(part), end.shape[1]).scatter_(1, which[:, None], side)
            rows = rows.view(-1, 1, 1, *shape)
            function = LowerBound(bounds, where, rows)
            found = optimise(function, function.start(), function.no_splits(), first, late=inside)
            place = None
            if planes:
                place = function.best_place(found.alpha, found.beta, steps=PLACES)
                function = function.exact_at(place)
                found = optimise(function, found.alpha, found.beta, rest, late=inside)
            bound, code = found.bound, coded(found.alpha)
            if proof is not None:
                function = LowerBound(proof, where, rows.double())
                function = function if place is None else function.exact_at(place.double())
                value = function.sound_value(decoded(code, torch.float64), function.no_splits())
                bound = below(value, bounds.lower.dtype)
            if reach is not None:
                held = decoded(code, end.dtype)
                slope, const = function.linear(held, function.no_splits().to(held))
                slopes, consts = (reach.low, reach.low_const) if side > 0 else (reach.high, reach.high_const)
                slopes[where, which], consts[where, which] = slope * side, const * side
            if sound is not None and sound.keep is not None:
                some = torch.nonzero(bound > end[where, which] * side).flatten()
                open_ = bounds.open[where[some]]
                sound.keep(Improved(target, side, where[some], which[some], bound[some] * side, code[some], open_))
            end[where, which] = best(end[where, which], bound * side)
    return (lower.view(-1, *shape), upper.view(-1, *shape)), reach


def in_windows(
    network: Network, target: int, intervals: list[Interval], wanted: Tensor, late: Late, sound: Sound | None
) -> Interval:
    """The interval of a convolution behind curves, improved at the wanted neurons, (B, n) boolean.

    Planes that are exact where a neuron's bound is attained leave little of its gap, and nothing has to be optimised.
    """
    window = WindowNetwork.of(network, target, curves=True)
    proof_window = window if sound is None else WindowNetwork.of(sound.network, target, curves=True)
    image, neuron = torch.nonzero(wanted, as_tuple=True)
    kept = sound is not None and sound.keep is not None
    if window is None or proof_window is None or len(image) == 0 or kept:
        return intervals[target]
    dtype, shape = window.layout.bias.dtype, intervals[target][0].shape
    lower, upper = (end.flatten(1).clone() for end in intervals[target])
    size = fitting(window.layout.floats, lower.device, torch.float64, WINDOWS)
    for end, side, best in ((lower, 1.0, torch.maximum), (upper, -1.0, torch.minimum)):
        for part in torch.split(torch.arange(len(image), device=image.device), size):
            if late():
                break
            where, which = image[part], neuron[part]
            if sound is None:
                proof = bounds = window.bounds(intervals, where, which)
            else:
                proof = proof_window.bounds(intervals, where, which, sound.rounding, sound.errors)
                bounds = proof.searched(window.layout, dtype)
            if not takes_planes(bounds):
                return intervals[target]
            rows = window.rows(which, torch.full((len(part),), side, dtype=dtype, device=image.device))
            everyone = torch.arange(len(part), device=image.device)
            function = LowerBound(bounds, everyone, rows)
            alpha, none = function.start(), function.no_splits()
            place = function.best_place(alpha, none, steps=PLACES)
            if sound is None:
                bound = function.exact_at(place).value(alpha, none)[0]
            else:
                again = LowerBound(proof, everyone, rows.double()).exact_at(place.double())
                bound = below(again.sound_value(alpha.double(), none.double()), dtype)
            end[where, which] = best(end[where, which], bound.to(end) * side)
    return lower.view(shape), upper.view(shape)


def takes_planes(bounds: NeuronBounds) -> bool:
    """Whether the first layer has curves; where hardware's own errors count, planes do not know of them."""
    return not bounds.errors and first_curve(bounds.layout) is not None
