"""What "one unit of input" means: a raw pixel, or the input after the network's own normalisation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipgraft.bounds.geometry import at_input, input_like
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.network.graph import Network

Weight = Callable[[Network, Tensor], Tensor]


def _pixel(network: Network, like: Tensor) -> Tensor:
    return torch.ones(network.input_shape, dtype=like.dtype, device=like.device)


def _normalised(network: Network, like: Tensor) -> Tensor:
    """1 / |scale| of the element-wise affine nodes at the network's input; 0 for an input that they erase.

    The normalised input is x' = scale x + shift, so that df/dx' = (df/dx) / scale.
    """
    root = input_like(network)
    ones = torch.ones(1, 1, *network.nodes[root].shape, dtype=like.dtype, device=like.device)
    scale = at_input(network, root, ones)[0, 0].abs()
    return torch.where(scale == 0, 0.0, 1 / scale)  # NaN stays NaN


# units: the factor on the derivative with respect to each raw input, (*input_shape,)
UNITS: dict[str, Weight] = {"pixel": _pixel, "normalised": _normalised}


def input_weight(units: str, network: Network, like: Tensor) -> Tensor:
    """The factor on the derivative with respect to each raw input, of `like`'s dtype and device: (*input_shape,)."""
    if units not in UNITS:
        raise SettingsError(unknown_name("units", units, list(UNITS)))
    return UNITS[units](network, like)
