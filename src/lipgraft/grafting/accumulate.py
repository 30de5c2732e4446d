"""Running reductions over the images of a calibration set, for one activation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.grafting.scores.gain import gain
from lipgraft.grafting.scores.instability import s_u
from lipgraft.network.graph import Activation


@dataclass
class Accumulator:
    """Sums and extremes over images; every tensor is of the activation's shape and stays on the device."""

    node: Activation
    slope: float
    unstable: Tensor
    width_sum: Tensor
    width_max: Tensor
    lower_min: Tensor
    upper_max: Tensor
    gain_sum: Tensor
    gain_max: Tensor
    magnitude: Tensor
    gradient: Tensor | None

    @staticmethod
    def empty(node: Activation, slope: float, like: Tensor, *, with_gradient: bool) -> Accumulator:
        """Before the first image. like: for the dtype and the device."""

        def full(value: float) -> Tensor:
            return like.new_full(node.shape, value)

        inf = float("inf")
        return Accumulator(
            node=replace(node, graft=None),  # what a graft would gain is reckoned against the activation itself
            slope=slope,
            unstable=torch.zeros(node.shape, dtype=torch.int64, device=like.device),
            width_sum=full(0.0),
            width_max=full(-inf),
            lower_min=full(inf),
            upper_max=full(-inf),
            gain_sum=full(0.0),
            gain_max=full(-inf),
            magnitude=full(0.0),
            gradient=full(0.0) if with_gradient else None,
        )

    def add(self, lb: Tensor, ub: Tensor, magnitude: Tensor, gradient: Tensor | None) -> None:
        """lb, ub: (B, *shape), bounds of the pre-activation; magnitude, gradient: sums over the same images."""
        width = ub - lb
        low, high = self.node.interval((lb, ub))
        gains = gain(high - low, width, self.slope)
        self.unstable += s_u(lb, ub, self.node.curve.bends)
        self.width_sum += width.sum(0)
        self.gain_sum += gains.sum(0)
        self.width_max = torch.maximum(self.width_max, width.amax(0))
        self.lower_min = torch.minimum(self.lower_min, lb.amin(0))
        self.upper_max = torch.maximum(self.upper_max, ub.amax(0))
        self.gain_max = torch.maximum(self.gain_max, gains.amax(0))
        self.magnitude += magnitude
        if self.gradient is not None and gradient is not None:
            self.gradient += gradient

    def finite(self) -> Tensor:
        """Whether every reduction is finite; a NaN or infinite bound of any image shows in one of these sums."""
        return torch.isfinite(self.width_sum).all() & torch.isfinite(self.gain_sum).all()
