"""Ascents that stop and go: `search` takes some steps, drops the rows whose image is broken, and takes the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from lipgraft.attacks.ascent import Loss, Model, Visit, ascend, input_gradient, project
from lipgraft.attacks.methods import Method
from lipgraft.attacks.wide import Wide, widths
from lipgraft.network.graph import Network


class Climb(Protocol):
    """x: where each row is, (R, *shape). left: how many steps are still to be taken."""

    x: Tensor

    @property
    def left(self) -> int: ...

    def take(self, count: int, model: Model, loss: Loss, visit: Visit) -> int:
        """The next steps, at most `count`; how many they were."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""


def begin(
    method: Method,
    start: Tensor,
    lower: Tensor,
    upper: Tensor,
    eps: Tensor,
    steps: Sequence[float],
    network: Network | None = None,
    restart: Tensor | None = None,
) -> Climb:
    """The method's ascent from a start in the box. start, lower, upper: (R, *shape); eps: (R, 1, ...).

    network: the model as a graph, restart: (R,), the number of each row's restart; for methods that look past kinks.
    """
    if method.wide:
        assert network is not None
        assert restart is not None
        first = start.new_full((len(start),), steps[0])
        width = widths(restart, start)
        return Wide(network, start, lower, upper, eps, first=first, width=width, steps=len(steps))
    if method.adaptive:
        return Adaptive(start, lower, upper, eps, steps)
    return Scheduled(start, lower, upper, eps, steps, method.momentum)


class Scheduled:
    """Steps of given sizes: `ascend`, a part at a time."""

    def __init__(
        self, start: Tensor, lower: Tensor, upper: Tensor, eps: Tensor, steps: Sequence[float], momentum: float
    ) -> None:
        self.x, self.lower, self.upper, self.eps, self.steps, self.momentum = start, lower, upper, eps, steps, momentum
        self.direction: Tensor | None = None

    @property
    def left(self) -> int:
        return len(self.steps)

    def take(self, count: int, model: Model, loss: Loss, visit: Visit) -> int:
        some, self.steps = self.steps[:count], self.steps[count:]
        self.x, self.direction = ascend(
            model,
            self.x,
            self.lower,
            self.upper,
            loss,
            eps=self.eps,
            steps=some,
            momentum=self.momentum,
            direction=self.direction,
            visit=visit,
        )
        return len(some)

    def keep(self, rows: Tensor) -> None:
        self.x, self.lower, self.upper, self.eps = (t[rows] for t in (self.x, self.lower, self.upper, self.eps))
        self.direction = self.direction[rows] if self.direction is not None else None


RISES = 0.75
"""The loss must rise in this share of the steps between two looks, or the step is halved."""
PULL = 0.75
"""How much of a step is the gradient's; the rest repeats the step before."""


def looks(steps: int) -> list[int]:
    """After how many steps the step sizes are judged: first after 22 % of them, then in intervals down to 6 %."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return sorted({math.ceil(share * steps) for share in shares[1:] if share < 1})


class Adaptive:
    """Sign-gradient ascent with momentum, in which each row halves its step and returns to the best point it has seen
    when the loss rises too seldom, or not above its best (the step rule of Auto-PGD, Croce and Hein, 2020).

    Which rows those are is decided on the device: nothing here waits for it.
    """

    def __init__(self, start: Tensor, lower: Tensor, upper: Tensor, eps: Tensor, steps: Sequence[float]) -> None:
        rows = len(start)
        self.x = self.before = self.best_x = start
        self.lower, self.upper, self.size = lower, upper, eps * steps[0]
        self.best_gradient = torch.zeros_like(start)
        self.best = self.best_then = start.new_full((rows,), -torch.inf)
        self.value = -self.best  # what comes first is no rise
        self.rises = start.new_zeros(rows)
        self.halved = torch.zeros(rows, dtype=torch.bool, device=start.device)
        self.fresh = ~self.halved
        self.done, self.count, self.looks, self.looked = 0, len(steps), looks(len(steps)), 0

    @property
    def left(self) -> int:
        return self.count - self.done

    def take(self, count: int, model: Model, loss: Loss, visit: Visit) -> int:
        taken = min(count, self.left)
        for _ in range(taken):
            gradient, logits = input_gradient(model, self.x, loss)
            visit(self.x, logits)
            self._see(gradient, loss(logits).to(self.best.dtype))
            if self.done in self.looks:
                gradient = self._judge(gradient)
            self._step(gradient)
            self.done += 1
        return taken

    def keep(self, rows: Tensor) -> None:
        for name in ("x", "before", "best_x", "lower", "upper", "size", "best_gradient", "value", "best", "best_then"):
            setattr(self, name, getattr(self, name)[rows])
        self.rises, self.halved, self.fresh = self.rises[rows], self.halved[rows], self.fresh[rows]

    def _see(self, gradient: Tensor, value: Tensor) -> None:
        """Count whether the loss rose, and keep the best point with its gradient; NaN is neither."""
        self.rises = self.rises + (value > self.value)
        better = value > self.best
        self.value, self.best = value, torch.where(better, value, self.best)
        self.best_x = torch.where(self._wide(better), self.x, self.best_x)
        self.best_gradient = torch.where(self._wide(better), gradient, self.best_gradient)

    def _judge(self, gradient: Tensor) -> Tensor:
        """Halve where the steps since the last look did too little; the gradient at the point each row goes on from."""
        seldom = self.rises < RISES * (self.done - self.looked)
        stuck = ~self.halved & (self.best == self.best_then)
        self.halved = seldom | stuck
        back = self._wide(self.halved)
        self.size = torch.where(back, self.size / 2, self.size)
        self.x = torch.where(back, self.best_x, self.x)
        self.value = torch.where(self.halved, self.best, self.value)
        self.fresh = self.halved
        self.best_then, self.rises, self.looked = self.best, torch.zeros_like(self.rises), self.done
        return torch.where(back, self.best_gradient, gradient)

    def _step(self, gradient: Tensor) -> None:
        sign = torch.nan_to_num(gradient.sign(), nan=0.0)  # a step along NaN would destroy the point
        ahead = project(self.x + self.size * sign, self.lower, self.upper)
        carried = self.x + PULL * (ahead - self.x) + (1 - PULL) * (self.x - self.before)
        after = torch.where(self._wide(self.fresh), ahead, project(carried, self.lower, self.upper))
        self.before, self.x, self.fresh = self.x, after, torch.zeros_like(self.fresh)

    def _wide(self, rows: Tensor) -> Tensor:
        """(R,) as (R, 1, ...), to go with x."""
        return rows.reshape(-1, *[1] * (self.x.ndim - 1))
