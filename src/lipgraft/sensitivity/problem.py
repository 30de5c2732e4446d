"""A batch of boxes, ready for every notion; how the notions are computed; and the registry of notions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.crown import Prepared
from lipgraft.bounds.interval import Interval
from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.network.graph import Network
from lipgraft.rounding import round_down, round_up
from lipgraft.sensitivity.chain_rule import slope_range
from lipgraft.settings import converted, setting


@dataclass(frozen=True)
class LipschitzSettings:
    """The help of each setting starts with the notion that it belongs to."""

    bounds: str = setting("crown", "Bound method, for the output (output-width) or for the neurons (the Jacobians).")
    samples: int = setting(16, "sampled: points drawn from each box, including corners.")
    steps: int = setting(20, "sampled: steps of the ascent from the best point, for every output.")
    together: int | None = setting(
        None, "jacobian: most uncertain neurons of an image that are bounded together; default 4096, on a GPU 12288."
    )
    branches: int = setting(0, "jacobian: neurons to split per image, for small networks; 0 splits none.")
    iterations: int = setting(8, "jacobian: steps that improve the multipliers of neurons bounded together.")

    def __post_init__(self) -> None:
        converted(self)
        if self.branches < 0 or self.iterations < 1 or (self.together is not None and self.together < 0):
            raise SettingsError("the Jacobian bound needs branches >= 0, iterations >= 1 and together >= 0.")
        if self.samples < 1 or self.steps < 0:
            raise SettingsError(f"sampling needs samples >= 1 and steps >= 0, got {self.samples} and {self.steps}.")


@dataclass(frozen=True, eq=False)
class Problem:
    """network: detached; box: B boxes; eps: (B,), their radii before clipping; weight: (*input_shape,), see `units`."""

    network: Network
    box: Box
    eps: Tensor
    weight: Tensor
    settings: LipschitzSettings
    generator: torch.Generator


Norms = Callable[[Problem], Tensor]
"""Problem -> one number for every image and output: (B, n)."""


@dataclass(frozen=True)
class Notion:
    """double: computed in double precision, whatever the network's. lower: a lower bound, to be rounded down."""

    norms: Norms
    double: bool = False
    lower: bool = False

    def rounded(self, norms: Tensor, dtype: torch.dtype) -> Tensor:
        """The norms in another precision, still bounds of the same kind."""
        if norms.dtype == dtype:
            return norms
        return round_down(norms, dtype) if self.lower else round_up(norms, dtype)


NOTIONS: dict[str, Notion] = {}


def notion(name: str, *, double: bool = False, lower: bool = False) -> Callable[[Norms], Norms]:
    """Register a notion of the local Lipschitz constant."""

    def register(function: Norms) -> Norms:
        NOTIONS[name] = Notion(function, double, lower)
        return function

    return register


def slope_ranges(network: Network, layers: Mapping[str, Interval]) -> dict[int, Interval]:
    """The range of every activation's derivative, by position, from the pre-activation bounds by name: (B, *shape)."""
    return {i: slope_range(node, *layers[node.name]) for i, node in network.activations() if i <= network.output}


def finite_images(prepared: Prepared) -> Tensor:
    """Whether every value of the network over the box is known to be finite: (B,).

    A derivative lies in [0, 1] whatever the pre-activation is, so NaN could otherwise end in a finite bound.
    """
    ends = [end.flatten(1).isfinite().all(1) for interval in prepared.intervals for end in interval]
    return torch.stack(ends).all(0)
