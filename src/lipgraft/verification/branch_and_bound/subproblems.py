"""Subproblems: arrays side by side with one row each.

Alpha is kept in 8 bits: every alpha in [0, 1] is sound, and a start for the next optimisation need not be exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.alpha_crown import coded, decoded


@dataclass(frozen=True, eq=False)
class Subproblems:
    """B subproblems.

    image: (B,), row of `Images`; target: (B,), the class that must stay below the true one.
    bound: (B,), proved so far.
    alpha: (B, U k), the free parameters of each open neuron of the image.
    depth: (B,), number of splits.
    neuron, sign, beta, point: (B, D), the splits (see `LowerBound`) and their multipliers, in the order they were made.
    """

    image: Tensor
    target: Tensor
    bound: Tensor
    alpha: Tensor
    depth: Tensor
    neuron: Tensor
    sign: Tensor
    beta: Tensor
    point: Tensor

    def __len__(self) -> int:
        return len(self.image)

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def at(self, index: Tensor | slice) -> Subproblems:
        """Some of the rows. index: of the rows, or a boolean mask."""
        if isinstance(index, Tensor) and index.dtype == torch.bool:
            index = torch.nonzero(index).flatten()  # once: every mask waits for the device
        return Subproblems(**{name: t[index] for name, t in self.tensors().items()})

    def to(self, device: torch.device | str) -> Subproblems:
        return Subproblems(**{name: t.to(device) for name, t in self.tensors().items()})

    def row_bytes(self) -> int:
        """Memory of one row."""
        return sum(math.prod(t.shape[1:]) * t.element_size() for t in self.tensors().values())

    @staticmethod
    def cat(parts: Sequence[Subproblems]) -> Subproblems:
        names = [field.name for field in fields(Subproblems)]
        return Subproblems(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})

    def packed(self) -> Subproblems:
        """The same in less memory. Every alpha in [0, 1] is sound, so 8 bits are enough to start from."""
        return replace(
            self,
            image=self.image.int(),
            target=self.target.short(),
            alpha=coded(self.alpha),
            depth=self.depth.short(),
            neuron=self.neuron.int(),
            sign=self.sign.to(torch.int8),
        )

    def unpacked(self) -> Subproblems:
        dtype = self.beta.dtype
        return replace(
            self,
            image=self.image.long(),
            target=self.target.long(),
            alpha=decoded(self.alpha, dtype),
            depth=self.depth.long(),
            neuron=self.neuron.long(),
            sign=self.sign.to(dtype),
        )

    def widened(self, alphas: int, splits: int, size: int) -> Subproblems:
        """The same with room for this many alphas and splits; size: the neuron that stands for none."""
        more, deeper = alphas - self.alpha.shape[1], splits - self.neuron.shape[1]
        wide = self if more == 0 else replace(self, alpha=F.pad(self.alpha, (0, more)))
        if deeper == 0:
            return wide
        return replace(
            wide,
            neuron=F.pad(self.neuron, (0, deeper), value=size),
            sign=F.pad(self.sign, (0, deeper)),
            beta=F.pad(self.beta, (0, deeper)),
            point=F.pad(self.point, (0, deeper)),
        )

    def filled_up(self, count: int) -> Subproblems:
        """`count` rows: the first row is repeated behind the others, so that shapes stay fixed."""
        index = torch.arange(count, device=self.image.device)
        return self.at(torch.where(index < len(self), index, 0))

    def split(self, neuron: Tensor, point: Tensor | None = None) -> Subproblems:
        """Both halves of a split of one neuron each: B rows with z >= point, then B rows with z <= point.

        neuron, point: (B,); no points: at zero.
        """
        at = self.depth[:, None]
        one = torch.ones_like(self.beta[:, :1])
        chosen = self.neuron.scatter(1, at, neuron[:, None])
        both = Subproblems.cat([self, self])
        points = both.point if point is None else self.point.scatter(1, at, point[:, None]).repeat(2, 1)
        return replace(
            both,
            depth=both.depth + 1,
            neuron=chosen.repeat(2, 1),
            sign=torch.cat([self.sign.scatter(1, at, one), self.sign.scatter(1, at, -one)]),
            point=points,
        )


def counted(image: Tensor, images: int, some: Tensor | None = None) -> Tensor:
    """How many rows belong to each image: (B,) -> (images,); some: (B,), which rows count.

    `torch.bincount` waits for the device.
    """
    one = torch.ones_like(image) if some is None else some.long()
    return torch.zeros(images, dtype=torch.int64, device=image.device).scatter_add_(0, image, one)
