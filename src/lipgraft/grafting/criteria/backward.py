"""Backward selection (the paper's Algorithm 1) and the criteria that differ from it in the score alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.grafting.criteria.ranking import every, instability_keys, shapes_of, split, top, top_within
from lipgraft.grafting.criteria.registry import criterion
from lipgraft.grafting.graph import last_layers, weight_factor
from lipgraft.grafting.scores import LayerScores, Scores, s_wi
from lipgraft.network.graph import Network
from lipgraft.settings import setting

LAST_LAYER = ("pool", "cap", "quota")


@dataclass(frozen=True)
class Backward:
    """Layer by layer from the last: some neurons by influence on what is already selected, the rest by instability.

    With N neurons and R = round(ratio N): the pool is the top `pool` N by s_u over the whole network; the last hidden
    layer is chosen by s_u alone, by the rule `last_layer`; what is left of R is spread over the other layers as s_u
    ranks their neurons together, which gives each its quota. Then, from the last layer to the first,
    I = the top `share` of the layer's size by influence, among the layer's members of the pool, given what is selected
    in the next layer(s); T = the most unstable of the rest, up to the quota; the layer's selection is I and T.
    The total is R, unless the rule for the last layer leaves more than the other layers can hold.
    """

    pool: float = setting(0.8, "Share of all neurons, the most unstable ones, from which influence selects.")
    share: float = setting(0.15, "Share of each layer selected by influence.")
    last_layer: str = setting(
        "cap",
        "Last hidden layer: its pool members, cut to last_cap when that is all of it (pool); never more than last_cap "
        "of it (cap); as many as the global ranking by s_u gives it (quota).",
        choices=LAST_LAYER,
    )
    last_cap: float = setting(0.7, "Share of the last hidden layer that the rules pool and cap retain.")

    def __post_init__(self) -> None:
        for name in ("pool", "share", "last_cap"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SettingsError(f"{name} must be between 0 and 1, got {getattr(self, name)}.")
        if self.last_layer not in LAST_LAYER:
            raise SettingsError(f"last_layer must be one of {', '.join(LAST_LAYER)}, got {self.last_layer!r}.")

    def influence(self, network: Network, name: str, layer: LayerScores, selected: dict[str, Tensor]) -> Tensor:
        """The score of the layer's neurons, largest first, given what is selected in the next layers."""
        raise NotImplementedError

    def masks(self, network: Network, scores: Scores, ratio: float) -> dict[str, Tensor]:
        keys = every(scores, "s_u"), every(scores, "width_mean")
        budget = round(ratio * len(keys[0]))
        pool = split(top(round(self.pool * len(keys[0])), *keys), shapes_of(scores))
        selected: dict[str, Tensor] = {}
        for name in last_layers(network) if self.last_layer != "quota" else ():
            count = min(budget, self._last_count(pool[name]))
            selected[name] = top(count, *instability_keys(scores.layers[name])).reshape(pool[name].shape)
            budget -= count
        quotas = _quotas({name: layer for name, layer in scores.layers.items() if name not in selected}, budget)
        for name in reversed(quotas):
            selected[name] = self._layer(network, name, scores.layers[name], pool[name], quotas[name], selected)
        return {name: selected[name] for name in scores.layers}

    def _last_count(self, pool: Tensor) -> int:
        """How many neurons of the last hidden layer the rule keeps, before the budget. pool: its members, boolean."""
        members, cap = int(pool.sum()), round(self.last_cap * pool.numel())
        return min(members, cap) if self.last_layer == "cap" or members == pool.numel() else members

    def _layer(
        self,
        network: Network,
        name: str,
        layer: LayerScores,
        pool: Tensor,
        quota: int,
        selected: dict[str, Tensor],
    ) -> Tensor:
        """One layer's selection, given those of the layers it feeds. pool: boolean, of the layer's shape."""
        s_u, width = instability_keys(layer)
        influence = self.influence(network, name, layer, selected).flatten()
        count = min(quota, round(self.share * pool.numel()))
        influential = top_within(count, pool.flatten(), influence, s_u, width)
        rest = top_within(quota - int(influential.sum()), ~influential, s_u, width)
        return (influential | rest).reshape(pool.shape)


def _quotas(layers: dict[str, LayerScores], budget: int) -> dict[str, int]:
    """How many of each layer's neurons are among the `budget` most unstable of these layers."""
    if not layers:
        return {}
    keys = [torch.cat(parts) for parts in zip(*(instability_keys(layer) for layer in layers.values()), strict=True)]
    parts = torch.split_with_sizes(top(budget, *keys), [layer.s_u.numel() for layer in layers.values()])
    return {name: int(part.sum()) for name, part in zip(layers, parts, strict=True)}


@criterion("weighted-interval")
@dataclass(frozen=True)
class WeightedInterval(Backward):
    """Algorithm 1: the neurons of the largest s_wi(j) = max_i max_{k selected} |w_jk| |ub_j - lb_j|."""

    interval: str = setting(
        "width",
        "Width of a neuron over the images: max of ub - lb (width), or max ub - min lb (range).",
        choices=("width", "range"),
    )

    def influence(self, network: Network, name: str, layer: LayerScores, selected: dict[str, Tensor]) -> Tensor:
        width = layer.width_max if self.interval == "width" else layer.upper_max - layer.lower_min
        return s_wi(weight_factor(network, name, selected), width)


@criterion("lowest-weighted-interval")
@dataclass(frozen=True)
class LowestWeightedInterval(WeightedInterval):
    """The paper's comparison: the neurons of the smallest s_wi, all else as in Algorithm 1."""

    def influence(self, network: Network, name: str, layer: LayerScores, selected: dict[str, Tensor]) -> Tensor:
        return -super().influence(network, name, layer, selected)


@criterion("average-sensitivity")
@dataclass(frozen=True)
class AverageSensitivity(Backward):
    """Algorithm 1 with means in place of maxima."""

    mean_over: str = setting(
        "both",
        "What the mean is taken over instead of the maximum: images, the selected neurons of the next layer, or both.",
        choices=("images", "neurons", "both"),
    )

    def influence(self, network: Network, name: str, layer: LayerScores, selected: dict[str, Tensor]) -> Tensor:
        over = "max" if self.mean_over == "images" else "mean"
        width = layer.width_max if self.mean_over == "neurons" else layer.width_mean
        return s_wi(weight_factor(network, name, selected, over=over), width)


@criterion("gain-aware")
@dataclass(frozen=True)
class GainAware(Backward):
    """Algorithm 1 with the gain of the bound in place of the width: max_k |w_jk| (ub - gamma (ub - lb)).

    gamma is the slope that `score` was given. Neurons whose graft would widen the bound come last.
    """

    over_images: str = setting("max", "Over the images, take the largest gain or the mean.", choices=("max", "mean"))

    def influence(self, network: Network, name: str, layer: LayerScores, selected: dict[str, Tensor]) -> Tensor:
        gain = layer.gain_max if self.over_images == "max" else layer.gain_mean
        return s_wi(weight_factor(network, name, selected), gain)
