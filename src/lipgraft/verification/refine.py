"""Optimised bounds of hidden neurons, before margins are optimised and branched on.

A neuron's bound is a subproblem like a margin's: its row starts at the pre-activation instead of the output, and its
lines are its own. Layers are done in order, each with the improved bounds of those before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipgraft.bounds.geometry import interval_is_exact
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.relaxations import unstable
from lipgraft.network.graph import Activation, Network
from lipgraft.verification.bounding import Bounding
from lipgraft.verification.layout import Layout
from lipgraft.verification.memory import fitting
from lipgraft.verification.optimise import Steps, optimise
from lipgraft.verification.roots import Roots


def refine(
    network: Network,
    intervals: list[Interval],
    box: Interval,
    which: str,
    steps: Steps,
    most: int,
    late: Callable[[], bool] = lambda: False,
) -> list[Interval]:
    """The intervals of all nodes with tighter ones where neurons were unstable. which: "none", "vectors" or "all".

    late: asked now and then; once it holds, what is left keeps the interval that it has.
    """
    out = list(intervals)
    if which == "none" or steps.iterations == 0:
        return out
    exact = interval_is_exact(network)
    readers: dict[int, list[Activation]] = {}
    for i, act in network.activations():
        if i <= network.output:
            readers.setdefault(act.inputs[0], []).append(act)
    for target, acts in sorted(readers.items()):
        image = len(network.nodes[target].shape) == 3
        if not exact[target] and (which == "all" or not image):
            wanted = torch.stack([unstable(act, *out[target]) for act in acts]).any(0)
            out[target] = _refined(network, target, out, box, wanted.flatten(1), steps, most, late)
    return out


def _refined(
    network: Network,
    target: int,
    intervals: list[Interval],
    box: Interval,
    wanted: Tensor,
    steps: Steps,
    most: int,
    late: Callable[[], bool],
) -> Interval:
    """The interval of one node, improved at the wanted neurons, (B, n) boolean."""
    layout = Layout.of(network, target)
    shape = network.nodes[target].shape
    lower, upper = (end.flatten(1).clone() for end in intervals[target])
    number = torch.arange(len(lower), device=lower.device)
    roots = Roots.of(layout, intervals, number, number, box)
    image, neuron = torch.nonzero(wanted, as_tuple=True)
    if roots.open.shape[1] == 0 or len(image) == 0:
        return intervals[target]
    inside = late if lower.device.type == "cpu" else None  # a GPU would have to wait in every step
    for end, side in ((lower, 1.0), (upper, -1.0)):
        for part in torch.split(torch.arange(len(image), device=image.device), _fit(layout, lower, most)):
            if late():
                break
            where, which = image[part], neuron[part]
            rows = lower.new_zeros(len(part), end.shape[1]).scatter_(1, which[:, None], side)
            none = neuron.new_zeros(len(part), 0)
            bounding = Bounding(roots, where, rows.view(-1, 1, 1, *shape), none, none.to(rows.dtype))
            found = optimise(bounding, bounding.start(), none.to(rows.dtype), steps, late=inside).bound * side
            best = torch.maximum if side > 0 else torch.minimum
            end[where, which] = best(end[where, which], found)
    return lower.view(-1, *shape), upper.view(-1, *shape)


def _fit(layout: Layout, like: Tensor, most: int) -> int:
    return fitting(layout, like.device, like.dtype, most)
