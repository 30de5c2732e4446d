"""A batch of axis-aligned boxes of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.inputs import ends, pixels, radii
from lipgraft.network.precision import ordinary
from lipgraft.rounding import round_down, round_up, sum_down, sum_up


@dataclass(frozen=True, eq=False)
class Box:
    """All x with lower <= x <= upper, one box per row. lower, upper: (B, *shape), floats.

    Arrays become tensors, and of two types of floats both ends get the finer one.
    """

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        for name, end in zip(("lower", "upper"), ends(self.lower, self.upper), strict=True):
            object.__setattr__(self, name, end)
        if self.lower.shape != self.upper.shape:
            raise SettingsError(
                f"a box needs two ends of one shape, got {tuple(self.lower.shape)} and {tuple(self.upper.shape)}."
            )
        if not bool((self.lower <= self.upper).all()):
            raise SettingsError("a box needs lower <= upper everywhere, and no NaN; check the inputs and eps.")

    @staticmethod
    def linf(x: Tensor, eps: float | Tensor, *, low: float | None = 0.0, high: float | None = 1.0) -> Box:
        """The ball of radius eps around each x in the maximum norm, clipped to [low, high]: the box for proofs.

        x: (B, *shape), inside [low, high], None for no limit; eps: a number or (B,), taken as the double that it is.
        Ends that x's type cannot hold are rounded outward, so every real point of the ball is inside; with eps 0 the
        box is x itself.

        Examples:
            >>> import torch
            >>> import lipgraft as lg
            >>> box = lg.Box.linf(torch.tensor([[0.0, 0.5]], dtype=torch.float64), 0.25)
            >>> box.lower, box.upper
            (tensor([[0.0000, 0.2500]], dtype=torch.float64), tensor([[0.2500, 0.7500]], dtype=torch.float64))
        """
        x = pixels(x, low, high)
        radius = _radius(eps, x)
        lower, upper = sum_down(x.double(), -radius, x.dtype), sum_up(x.double(), radius, x.dtype)
        if low is not None:
            lower = lower.clamp(min=_end(low, round_down, x))
        if high is not None:
            upper = upper.clamp(max=_end(high, round_up, x))
        return Box(lower, upper)

    @staticmethod
    def inside(x: Tensor, eps: float | Tensor, *, low: float | None = 0.0, high: float | None = 1.0) -> Box:
        """The same ball with its ends rounded inward: the box for counterexamples.

        All its points are of x's type and at an exact distance of at most eps. Where the type has no number in the
        ball and the range, the box is x.
        """
        x = pixels(x, low, high)
        radius = _radius(eps, x)
        lower, upper = sum_up(x.double(), -radius, x.dtype), sum_down(x.double(), radius, x.dtype)
        if low is not None:
            lower = lower.clamp(min=_end(low, round_up, x))
        if high is not None:
            upper = upper.clamp(max=_end(high, round_down, x))
        empty = lower > upper
        return Box(torch.where(empty, x, lower), torch.where(empty, x, upper))

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
        """The box in another type or on another device. A coarser type rounds its ends outward."""
        lower, upper = self.lower.to(device=device), self.upper.to(device=device)
        if dtype is not None:
            lower, upper = round_down(lower.double(), dtype), round_up(upper.double(), dtype)
        return Box(ordinary(lower), ordinary(upper))


def _radius(eps: float | Tensor, x: Tensor) -> Tensor:
    """The radius of each image in double precision, to be added to images (B, *shape)."""
    return radii(eps, len(x), x.device).reshape(-1, *[1] * (x.ndim - 1))


def _end(value: float, rounded: Callable[[Tensor, torch.dtype], Tensor], like: Tensor) -> Tensor:
    """An end of the valid range in the images' type."""
    return rounded(torch.tensor(value, dtype=torch.float64, device=like.device), like.dtype)
