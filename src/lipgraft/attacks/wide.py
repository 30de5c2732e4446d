"""Gradients that look past kinks: through each activation by its mean slope over a neighbourhood.

Where many neurons are off, the gradient does not know of them, and ascents from all starts end in the same few places.
The mean slope of a ReLU that is off, but not far from its kink, is not zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lipgraft.attacks.ascent import Loss, input_gradient, project
from lipgraft.network.graph import Activation, Network, Node

Late = Callable[[], bool]

WIDEST = 0.7
"""The share of the steps over which the neighbourhood shrinks to nothing; the rest follow the gradient itself."""
LAST = 0.004
"""Size of the last step, as a share of the box's half width; the steps before are larger by a constant factor."""
NARROW = 1e-3
"""What is left of the neighbourhood at the end, so that nothing is divided by zero."""


def logits(network: Network, x: Tensor, width: Tensor) -> Tensor:
    """f(x), with mean slopes in place of derivatives when it is differentiated. x: (R, *shape) -> (R, classes).

    width: (R,), half of the neighbourhood, as a share of the layer's mean |z|.
    """
    values: list[Tensor] = []
    for node in network.nodes:
        inputs = [values[j] for j in node.inputs]
        if not inputs:
            values.append(x)
        elif isinstance(node, Activation):
            values.append(_by_mean_slope(node, inputs[0], width))
        else:
            values.append(node.forward(*inputs))
    return values[network.output]


def _by_mean_slope(node: Node, z: Tensor, width: Tensor) -> Tensor:
    """act(z), whose derivative is (act(z + w) - act(z - w)) / 2w."""
    held = z.detach()
    w = width.reshape(-1, *[1] * (z.ndim - 1)) * held.abs().mean() + torch.finfo(z.dtype).tiny ** 0.5
    slope = (node.forward(held + w) - node.forward(held - w)) / (2 * w)
    value: Tensor = node.forward(held) + slope * (z - held)
    return value


def climb(
    network: Network,
    start: Tensor,
    lower: Tensor,
    upper: Tensor,
    loss: Loss,
    *,
    first: Tensor,
    width: Tensor,
    steps: int,
    late: Late = lambda: False,
) -> Tensor:
    """The best points of ascents by shrinking sign steps, (R, *shape).

    start: (R, *shape), inside [lower, upper]. first: (R,), the first step as a share of the box's half width; width:
    (R,), of the neighbourhood in the beginning. Once it has shrunk, each row goes on from the best point it has seen.
    late: asked before each step; once it holds, no more are taken.
    """
    half = (upper - lower) / 2
    turn = int(WIDEST * steps)
    x, best, most = start, start, start.new_full((len(start),), -torch.inf)
    for step in range(steps + 1):
        if late():
            break
        if step == turn:
            x = best
        left = max(0.0, 1 - step / max(turn, 1))
        now = width * left + NARROW
        gradient, seen = input_gradient(partial(logits, network, width=now), x, loss)
        value = loss(seen)
        better = value > most  # False for NaN
        most = torch.where(better, value, most)
        best = torch.where(_wide(better, x), x, best)
        size = _wide(first * (LAST / first) ** (step / steps), x) * half
        x = project(x + size * torch.nan_to_num(gradient.sign(), nan=0.0), lower, upper)
    return best


def _wide(rows: Tensor, like: Tensor) -> Tensor:
    """(R,) as (R, 1, ...), to go with points."""
    return rows.reshape(-1, *[1] * (like.ndim - 1))
