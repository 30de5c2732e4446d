"""What scoring gives back: the scores of every neuron of every activation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lipgraft.network.graph import Shape


@dataclass(frozen=True, eq=False)
class LayerScores:
    """One activation's scores, each of the activation's shape; lb, ub are pre-activation bounds per image."""

    s_u: Tensor  # images on which lb < 0 < ub
    s_wi: Tensor  # max width times the largest |w| into the next layers, all of their neurons counted
    width_max: Tensor  # max over images of ub - lb
    width_mean: Tensor  # mean over images of ub - lb
    lower_min: Tensor  # min over images of lb
    upper_max: Tensor  # max over images of ub
    gain_max: Tensor  # max over images of (act(ub) - act(lb)) - slope (ub - lb)
    gain_mean: Tensor  # its mean
    magnitude: Tensor  # mean over images of |z|
    gradient: Tensor | None  # mean over images of |d CE / d z|; None when no labels were given


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of every activation, in the network's order, and how they were made."""

    layers: dict[str, LayerScores]
    count: int
    input_shape: Shape
    eps: float
    bounds: str
    slope: float

    @property
    def s_u(self) -> dict[str, Tensor]:
        """Instability: the number of images on which each neuron is unstable."""
        return {name: layer.s_u for name, layer in self.layers.items()}

    @property
    def s_wi(self) -> dict[str, Tensor]:
        """Weighted interval with the whole next layer selected; `select` computes it anew for its own selection."""
        return {name: layer.s_wi for name, layer in self.layers.items()}

    @property
    def widths(self) -> dict[str, Tensor]:
        """max over images of ub - lb."""
        return {name: layer.width_max for name, layer in self.layers.items()}
