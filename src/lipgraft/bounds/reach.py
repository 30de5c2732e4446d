"""Between which linear functions of the root's values the neurons of a vector lie: what bounds of neurons leave behind.

A neuron of the first layer is a linear function of the root. A neuron further back is none, but lies between two; from
one point x* to another it changes by no more than the larger one of their coefficients says, and the distance of the
two at x* on top of it:

    |z(x) - z*| <= sum_i size_i |x_i - x*_i| + distance / 2,    z* in the middle between the two at x*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.grouped import Grouped
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.memory import free_bytes

LARGEST = 2**22  # coefficients of one layer in one box
COPIES = 64  # bytes of a coefficient, with those of a search and what is made of them
MEMORY = 0.1  # of what is free, at most


class Known(Protocol):
    """What planes around curves need to know of a layer's neurons."""

    def around(self, point: Tensor, grouped: Grouped, ends: Interval) -> tuple[Tensor, Tensor]:
        """z* and half the distance at points (B, m) of boxes, (B, n) each. ends: of the neurons, (B, n)."""

    def spread(self, rows: Tensor, grouped: Grouped) -> Tensor:
        """sum_j rows_j size_j, (B, n) -> (B, m)."""


@dataclass(frozen=True, eq=False)
class Reach:
    """low x + low_const <= z <= high x + high_const, for x in each of I boxes: (I, n, m) and (I, n)."""

    low: Tensor
    low_const: Tensor
    high: Tensor
    high_const: Tensor

    @cached_property
    def size(self) -> Tensor:
        """(I, n, m): the larger coefficients."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @staticmethod
    def affordable(boxes: int, neurons: int, values: int, device: torch.device) -> bool:
        """Whether it is worth its memory."""
        each = neurons * values
        return each <= LARGEST and boxes * each * COPIES <= MEMORY * free_bytes(device)

    @staticmethod
    def empty(boxes: int, neurons: int, values: int, like: Tensor) -> Reach:
        """To be filled: nothing is known."""
        rows, const = like.new_zeros(boxes, neurons, values), like.new_full((boxes, neurons), torch.inf)
        return Reach(rows, -const, rows.clone(), const)

    def around(self, point: Tensor, grouped: Grouped, ends: Interval) -> tuple[Tensor, Tensor]:
        low, high = (
            grouped.product(point, rows.transpose(1, 2)) + const[grouped.group]
            for rows, const in ((self.low, self.low_const), (self.high, self.high_const))
        )
        low, high = torch.maximum(low, ends[0]), torch.minimum(high, ends[1])
        return (low + high) / 2, ((high - low) / 2).clamp(min=0)

    def spread(self, rows: Tensor, grouped: Grouped) -> Tensor:
        return grouped.product(rows, self.size)

    def to(self, where: torch.dtype | torch.device | str) -> Reach:
        return Reach(*(t.to(where) for t in self._tensors()))

    def at(self, boxes: Tensor) -> Reach:
        return Reach(*(t[boxes] for t in self._tensors()))

    @staticmethod
    def cat(parts: Sequence[Reach]) -> Reach:
        return Reach(*(torch.cat(some) for some in zip(*(part._tensors() for part in parts), strict=True)))

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.low, self.low_const, self.high, self.high_const


@dataclass(frozen=True, eq=False)
class WindowReach:
    """The same of a convolution's neurons, each of which sees a window of the root, of K values.

    Of every box there are equally many rows R, in order: B = I R.
    low, high: (I, P, C, K), by place and channel; low_const, high_const: (I, C P), in the layer's order.
    index: (P, K), which of the root's m values a window holds; m for those over the edge; values: m.
    """

    low: Tensor
    low_const: Tensor
    high: Tensor
    high_const: Tensor
    index: Tensor
    values: int

    @cached_property
    def size(self) -> Tensor:
        """(I, P, C, K): the larger coefficients."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def around(self, point: Tensor, grouped: Grouped, ends: Interval) -> tuple[Tensor, Tensor]:
        boxes = len(self.low)
        seen = F.pad(point, (0, 1))[:, self.index].view(boxes, -1, *self.index.shape).transpose(1, 2)  # (I, P, R, K)
        low, high = (
            ((seen @ rows.transpose(2, 3)).permute(0, 2, 3, 1).flatten(2) + const[:, None]).flatten(0, 1)
            for rows, const in ((self.low, self.low_const), (self.high, self.high_const))
        )
        low, high = torch.maximum(low, ends[0]), torch.minimum(high, ends[1])
        return (low + high) / 2, ((high - low) / 2).clamp(min=0)

    def spread(self, rows: Tensor, grouped: Grouped) -> Tensor:
        boxes, places, channels, _ = self.size.shape
        seen = rows.view(boxes, -1, channels, places).permute(0, 3, 1, 2) @ self.size  # (I, P, R, K)
        out = rows.new_zeros(len(rows), self.values + 1)
        return out.index_add(1, self.index.flatten(), seen.transpose(1, 2).flatten(2).flatten(0, 1))[:, :-1]

    @staticmethod
    def cat(parts: Sequence[WindowReach]) -> WindowReach:
        tensors = ((part.low, part.low_const, part.high, part.high_const) for part in parts)
        low, low_const, high, high_const = (torch.cat(some) for some in zip(*tensors, strict=True))
        return WindowReach(low, low_const, high, high_const, parts[0].index, parts[0].values)
