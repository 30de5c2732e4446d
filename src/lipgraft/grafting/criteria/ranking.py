"""Choosing the best so many neurons, with ties broken the same way everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from lipgraft.grafting.scores import LayerScores, Scores
from lipgraft.network.graph import Shape


def top(count: int, *keys: Tensor) -> Tensor:
    """True at the `count` neurons with the largest first key; equals go by the second key, ..., then by lower index.

    keys: (n,) each -> boolean (n,).
    """
    order = torch.arange(len(keys[0]), device=keys[0].device)
    for key in reversed(keys):  # sorting by the least important key first works because each sort is stable
        order = order[torch.sort(key[order], stable=True, descending=True).indices]
    chosen = torch.zeros_like(keys[0], dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen


def top_within(count: int, allowed: Tensor, *keys: Tensor) -> Tensor:
    """As `top`, among the neurons where `allowed` is True; fewer than `count` when there are not enough."""
    return top(min(count, int(allowed.sum())), allowed, *keys)


def joined(values: Mapping[str, Tensor]) -> Tensor:
    """All layers in one vector, in the order of the mapping."""
    return torch.cat([v.flatten() for v in values.values()])


def split(vector: Tensor, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """The reverse of `joined`."""
    parts = torch.split_with_sizes(vector, [prod(shape) for shape in shapes.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def shapes_of(scores: Scores) -> dict[str, Shape]:
    return {name: tuple(layer.s_u.shape) for name, layer in scores.layers.items()}


def every(scores: Scores, field: str) -> Tensor:
    """One field of the scores, all layers in one vector."""
    return joined({name: getattr(layer, field) for name, layer in scores.layers.items()})


def instability_keys(layer: LayerScores) -> tuple[Tensor, Tensor]:
    """The keys of 'most unstable first': s_u, then the mean width (s_u has many ties: it is a count of images)."""
    return layer.s_u.flatten(), layer.width_mean.flatten()


def dense_rank(values: Tensor) -> Tensor:
    """Ranks in [0, 1]: the smallest value 0, the largest 1, equal values equal, distinct values evenly spaced."""
    rank: Tensor = torch.unique(values, return_inverse=True)[1]
    return rank.to(torch.float64) / rank.max().clamp(min=1)


def min_max(values: Tensor) -> Tensor:
    """Values shifted and scaled to [0, 1]."""
    values = values.to(torch.float64)
    low, high = values.min(), values.max()
    return (values - low) / torch.where(high > low, high - low, 1.0)
