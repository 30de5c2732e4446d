"""A batch of axis-aligned boxes of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.inputs import pixels, radii
from lipgraft.network.precision import ordinary


@dataclass(frozen=True, eq=False)
class Box:
    """All x with lower <= x <= upper, one box per row. lower, upper: (B, *shape)."""

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape:
            raise SettingsError(f"a box needs two ends of one shape, got {self.lower.shape} and {self.upper.shape}.")
        if not bool((self.lower <= self.upper).all()):
            raise SettingsError("a box needs lower <= upper everywhere, and no NaN; check the inputs and eps.")

    @staticmethod
    def linf(x: Tensor, eps: float | Tensor, *, low: float | None = 0.0, high: float | None = 1.0) -> Box:
        """The ball of radius eps around each x in the maximum norm, clipped to [low, high].

        x: (B, *shape), inside [low, high]; eps: a number or (B,). low, high: None for no limit.
        """
        x = pixels(x, low, high)
        radius = radii(eps, len(x), x.device).to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        lower, upper = x - radius, x + radius
        if low is not None:
            lower = lower.clamp(min=low)
        if high is not None:
            upper = upper.clamp(max=high)
        return Box(lower, upper)

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, index: slice | Tensor) -> Box:
        """The boxes at these rows."""
        return Box(self.lower[index], self.upper[index])

    @property
    def centre(self) -> Tensor:
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> Tensor:
        return (self.upper - self.lower) / 2

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Box:
        return Box(*(ordinary(end.to(device=device, dtype=dtype)) for end in (self.lower, self.upper)))
