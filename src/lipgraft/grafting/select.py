"""From scores to masks."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from lipgraft.errors import SettingsError
from lipgraft.grafting.criteria import Criterion, known_criterion
from lipgraft.grafting.graph import traced
from lipgraft.grafting.scores import Scores
from lipgraft.network.graph import Network
from lipgraft.settings import build


def select(
    model: nn.Module | Network,
    scores: Scores,
    criterion: str = "weighted-interval",
    ratio: float = 0.5,
    **settings: Any,
) -> dict[str, Tensor]:
    """{activation name: boolean mask of its shape}, True = to be grafted.

    criterion: a key of `lipgraft.grafting.criteria.CRITERIA`; settings: fields of that criterion (pool, share, ...).
    ratio: the share of all neurons to graft, in [0, 1]. Ties go to the larger mean width, then to the lower index.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        >>> scores = lg.grafting.score(model, torch.rand(20, 4), 0.1)
        >>> masks = lg.grafting.select(model, scores, "weighted-interval", 0.5)
        >>> {name: int(mask.sum()) for name, mask in masks.items()}
        {'1': 3}
    """
    chosen = check_selection(criterion, ratio, **settings)
    network = traced(model, scores.input_shape)
    _check(network, scores)
    return chosen.masks(network, scores, ratio)


def check_selection(criterion: str, ratio: float, **settings: Any) -> Criterion:
    """The criterion with its settings, or a SettingsError; asking before scoring saves the time of scoring."""
    if not (math.isfinite(ratio) and 0.0 <= ratio <= 1.0):
        raise SettingsError(f"ratio must be between 0 and 1, got {ratio}.")
    return build(known_criterion(criterion), settings, where=f"criterion {criterion}")


def _check(network: Network, scores: Scores) -> None:
    """The scores must be those of this network."""
    expected = {node.name: tuple(node.shape) for _, node in network.activations()}
    got = {name: tuple(layer.s_u.shape) for name, layer in scores.layers.items()}
    if list(expected.items()) != list(got.items()):
        raise SettingsError(
            f"the scores are of another network: they cover {_show(got)}, the network has {_show(expected)}."
        )


def _show(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
