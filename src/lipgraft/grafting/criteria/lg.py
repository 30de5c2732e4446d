"""The criterion of Linearity Grafting (LG), the method before this one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.grafting.criteria.ranked import gradients
from lipgraft.grafting.criteria.ranking import dense_rank, every, min_max, shapes_of, split, top_within
from lipgraft.grafting.criteria.registry import criterion
from lipgraft.grafting.scores import Scores
from lipgraft.network.graph import Network
from lipgraft.settings import setting

NORMALISE = {"dense-rank": dense_rank, "min-max": min_max}


@criterion("lg")
@dataclass(frozen=True)
class LinearityGrafting:
    """Neurons of the largest gamma r_u - r_s, in equal portions with falling gamma, over all layers together.

    r_u is the instability s_u and r_s the significance, each brought to [0, 1] over the whole network. With the
    default four weights and ratio 0.5 every portion is 12.5 % of all neurons. The last portion, of weight 0, looks at
    significance alone, so it takes dead neurons too.
    """

    gammas: tuple[float, ...] = setting((2.0, 1.5, 1.0, 0.0), "Weight of instability in each portion, in turn.")
    significance: str = setting("magnitude", "What makes a neuron significant.", choices=("magnitude", "gradient"))
    normalise: str = setting("dense-rank", "How both parts are normalised to [0, 1].", choices=tuple(NORMALISE))

    def __post_init__(self) -> None:
        if not self.gammas:
            raise SettingsError("gammas must hold at least one weight.")

    def masks(self, network: Network, scores: Scores, ratio: float) -> dict[str, Tensor]:
        scaled = NORMALISE[self.normalise]
        r_u = scaled(every(scores, "s_u"))
        r_s = scaled(gradients(scores) if self.significance == "gradient" else every(scores, "magnitude"))
        width = every(scores, "width_mean")
        total, taken = round(ratio * len(r_u)), torch.zeros_like(r_u, dtype=torch.bool)
        for portion, gamma in enumerate(self.gammas, start=1):
            # Cumulative rounding: the portions are equal up to one neuron and add up to the total.
            due = round(total * portion / len(self.gammas)) - round(total * (portion - 1) / len(self.gammas))
            taken |= top_within(due, ~taken, gamma * r_u - r_s, width)
        return split(taken, shapes_of(scores))
