"""What CROWN leaves for the next stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.bounds.sound import Rounding


@dataclass(frozen=True, eq=False)
class OpenMargins:
    """Images with margins that CROWN leaves open.

    intervals: of every node of the network; target: (B, S), the wrong classes; margins: (B, S), proved lower bounds.
    rounding, errors: of sound bounds; see `Prepared`.
    """

    images: list[int]
    intervals: list[Interval]
    target: Tensor
    margins: Tensor
    rounding: Rounding | None = None
    errors: Mapping[int, Tensor] = field(default_factory=dict)

    def at(self, places: list[int]) -> OpenMargins:
        """Some of the images."""
        some = torch.tensor(places, dtype=torch.int64, device=self.margins.device)
        return OpenMargins(
            [self.images[place] for place in places],
            [(lower[some], upper[some]) for lower, upper in self.intervals],
            self.target[some],
            self.margins[some].clone(),
            None if self.rounding is None else self.rounding.at(some),
            {i: error[some] for i, error in self.errors.items()},
        )
