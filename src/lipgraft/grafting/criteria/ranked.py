"""Criteria that rank every neuron by one number: instability, magnitude, gradient, random."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.grafting.criteria.ranking import every, shapes_of, split, top
from lipgraft.grafting.criteria.registry import criterion
from lipgraft.grafting.scores import Scores
from lipgraft.network.graph import Network
from lipgraft.settings import setting


@dataclass(frozen=True)
class Ranked:
    """Grafts the round(ratio N) neurons of the largest key, over the network or in each layer by itself."""

    scope: str = setting(
        "global", "Rank all layers together, or graft the same share of each.", choices=("global", "layer")
    )

    def key(self, scores: Scores) -> Tensor:
        """(N,): what to rank by, largest first."""
        raise NotImplementedError

    def masks(self, network: Network, scores: Scores, ratio: float) -> dict[str, Tensor]:
        shapes = shapes_of(scores)
        key, width = self.key(scores), every(scores, "width_mean")
        if self.scope == "global":
            return split(top(round(ratio * len(key)), key, width), shapes)
        keys, widths = split(key, shapes), split(width, shapes)
        return {
            name: top(round(ratio * k.numel()), k.flatten(), widths[name].flatten()).reshape(k.shape)
            for name, k in keys.items()
        }


@criterion("instability")
@dataclass(frozen=True)
class Instability(Ranked):
    """The most often unstable neurons: largest s_u."""

    def key(self, scores: Scores) -> Tensor:
        return every(scores, "s_u")


@criterion("magnitude")
@dataclass(frozen=True)
class Magnitude(Ranked):
    """The least significant neurons by mean |z|."""

    def key(self, scores: Scores) -> Tensor:
        return -every(scores, "magnitude")


@criterion("gradient")
@dataclass(frozen=True)
class Gradient(Ranked):
    """The least significant neurons by mean |d CE / d z|."""

    def key(self, scores: Scores) -> Tensor:
        return -gradients(scores)


@criterion("random")
@dataclass(frozen=True)
class Random(Ranked):
    """Neurons drawn at random."""

    seed: int = setting(0, "Random seed.")

    def key(self, scores: Scores) -> Tensor:
        count = len(every(scores, "s_u"))
        generator = torch.Generator().manual_seed(self.seed)  # on the CPU, so that every device draws the same
        return torch.randperm(count, generator=generator).to(every(scores, "s_u").device)


def gradients(scores: Scores) -> Tensor:
    """Gradient significance of all neurons in one vector."""
    if any(layer.gradient is None for layer in scores.layers.values()):
        raise SettingsError("gradient significance needs labels; score with y=labels.")
    return every(scores, "gradient")
