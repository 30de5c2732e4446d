"""What a built network says of itself; enough to build the same one again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSpec:
    """name, dataset, activation, batchnorm: as `build` takes them; input_shape: (C, H, W); classes: how many."""

    name: str
    dataset: str
    activation: str
    batchnorm: bool
    input_shape: tuple[int, int, int]
    classes: int
