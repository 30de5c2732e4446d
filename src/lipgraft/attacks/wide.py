"""Ascents by gradients that look past kinks: through each activation by its mean slope over a neighbourhood.

Where many neurons are off, the gradient does not know of them, and ascents from all starts end in the same few places.
The mean slope of a ReLU that is off, but not far from its kink, is not zero.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lipgraft.attacks.ascent import Loss, Model, Visit, input_gradient, project
from lipgraft.bounds.memory import Late, never
from lipgraft.network.graph import Activation, Network, Node

WIDEST = 0.7
"""The share of the steps over which the neighbourhood shrinks to nothing; the rest follow the gradient itself."""
LAST = 0.004
"""Size of the last step, as a share of eps; the steps before are larger by a constant factor."""
NARROW = 1e-3
"""What is left of the neighbourhood at the end, so that nothing is divided by zero."""
WIDTHS = 0.03, 3.0
"""Half of the neighbourhood in the beginning, as a share of a layer's mean |z|: from a little to all of it."""

FIRST_PLACE, GOLDEN = 0.8, 0.618034
"""Between both ends of WIDTHS, on a scale of orders of magnitude: where the first restart is, and how far the next."""


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
    w = _rows(width, z) * held.abs().mean() + torch.finfo(z.dtype).tiny ** 0.5
    slope = (node.forward(held + w) - node.forward(held - w)) / (2 * w)
    value: Tensor = node.forward(held) + slope * (z - held)
    return value


class Wide:
    """Shrinking sign steps along mean slopes. Once the neighbourhood has shrunk, each row goes on from the best point
    it has seen.

    x: where each row is, (R, *shape), inside [lower, upper]; best_x: its best point. eps: (R, 1, ...). first: (R,), the
    first step as a share of eps; width: (R,), of the neighbourhood in the beginning.
    """

    def __init__(
        self,
        network: Network,
        start: Tensor,
        lower: Tensor,
        upper: Tensor,
        eps: Tensor,
        *,
        first: Tensor,
        width: Tensor,
        steps: int,
    ) -> None:
        self.network, self.lower, self.upper, self.eps = network, lower, upper, eps
        self.first, self.width, self.steps, self.done = first, width, steps, 0
        self.x = self.best_x = start
        self.best = start.new_full((len(start),), -torch.inf)
        self.turn = int(WIDEST * steps)

    @property
    def left(self) -> int:
        return self.steps - self.done

    def take(self, count: int, model: Model, loss: Loss, visit: Visit) -> int:
        """The next steps, at most `count`; how many they were. model: what visit is told the logits of."""
        taken = min(count, self.left)
        for _ in range(taken):
            gradient = self._gradient(loss)
            with torch.no_grad():
                visit(self.x, model(self.x.clone()))
            self._step(gradient)
        return taken

    def to_the_end(self, loss: Loss, late: Late = never) -> Tensor:
        """The best points of all steps, (R, *shape). late: asked before each; once it holds, no more are taken."""
        while self.left and not late():
            self._step(self._gradient(loss))
        if not late():
            self._gradient(loss)  # remembers the last point
        return self.best_x

    def keep(self, rows: Tensor) -> None:
        for name in ("x", "best_x", "best", "lower", "upper", "eps", "first", "width"):
            setattr(self, name, getattr(self, name)[rows])

    def _gradient(self, loss: Loss) -> Tensor:
        """By mean slopes, at the points where the rows are, which are remembered where they are the best."""
        if self.done == self.turn:
            self.x = self.best_x
        width = self.width * max(0.0, 1 - self.done / max(self.turn, 1)) + NARROW
        gradient, seen = input_gradient(partial(logits, self.network, width=width), self.x, loss)
        value = loss(seen).to(self.best.dtype)
        better = value > self.best  # False for NaN
        self.best = torch.where(better, value, self.best)
        self.best_x = torch.where(_rows(better, self.x), self.x, self.best_x)
        return gradient

    def _step(self, gradient: Tensor) -> None:
        size = _rows(self.first * (LAST / self.first) ** (self.done / self.steps), self.x) * self.eps
        sign = torch.nan_to_num(gradient.sign(), nan=0.0)  # a step along NaN would destroy the point
        self.x = project(self.x + size * sign, self.lower, self.upper)
        self.done += 1


def widths(restart: Tensor, like: Tensor) -> Tensor:
    """The neighbourhood of each restart, by its number, (R,): wide and narrow ones in turn, no two alike."""
    place = (FIRST_PLACE + GOLDEN * restart.to(like.dtype)) % 1
    return WIDTHS[0] * (WIDTHS[1] / WIDTHS[0]) ** place


def _rows(values: Tensor, like: Tensor) -> Tensor:
    """(R,) as (R, 1, ...), to go with points."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
