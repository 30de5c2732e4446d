"""A batch of axis-aligned boxes of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.errors import SettingsError


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

        x: (B, *shape); eps: a number or (B,). The centre is clipped too, so that a pixel just outside the valid range
        cannot turn the box inside out.
        """
        radius = torch.as_tensor(eps, dtype=x.dtype, device=x.device)
        if not bool((torch.isfinite(radius) & (radius >= 0)).all()):
            raise SettingsError(f"eps must be a finite number >= 0, got {eps}.")
        if radius.ndim not in (0, 1) or (radius.ndim == 1 and len(radius) != len(x)):
            raise SettingsError(f"eps must be a number or one number per image, got shape {tuple(radius.shape)}.")
        radius = radius.reshape(-1, *[1] * (x.ndim - 1)) if radius.ndim else radius
        centre = x.clamp(low, high) if low is not None or high is not None else x
        lower, upper = centre - radius, centre + radius
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
        return Box(self.lower.to(device=device, dtype=dtype), self.upper.to(device=device, dtype=dtype))
