"""Lines to start from: for each neuron the one that comes nearest to its activation on real images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.grafting.graph import input_shape_of, traced
from lipgraft.inputs import pixels
from lipgraft.network import evaluate, like, subject
from lipgraft.network.graph import Shape

BATCH = 500
LINES = ("constant", "fitted")
"""How lines start: with one slope and intercept for all, or each fitted to its activation."""


@dataclass(frozen=True, eq=False)
class Line:
    """slope, intercept: of all neurons of an activation alike, or of each, of the activation's shape."""

    slope: float | Tensor
    intercept: float | Tensor


@torch.no_grad()
def fit_lines(model: nn.Module, x: Tensor, *, input_shape: Shape | None = None) -> dict[str, Line]:
    """{activation name: the lines h = slope z + intercept of least squares} over the images x (N, C, H, W).

    z is the pre-activation and h the activation's value there, both in the model as it is. A neuron whose z never
    changes gets slope 0 and its value. input_shape: of one input, when the model has no `spec` that says it.
    """
    shape = input_shape_of(model, input_shape) or tuple(x.shape[1:])
    if len(x) == 0:
        raise SettingsError("lines cannot be fitted to no images at all.")
    model = subject(model)
    network = traced(model, shape)
    x = pixels(x, None, None, like=like(model, x))
    sums: dict[str, Tensor] = {}
    for part in torch.split(x, BATCH):
        values = evaluate(network, part)
        for i, node in network.activations():
            z, h = values[node.inputs[0]].double(), values[i].double()
            sums[node.name] = sums.get(node.name, 0) + torch.stack([z, h, z * z, z * h]).sum(1)
    return {name: _least_squares(total / len(x), x.dtype) for name, total in sums.items()}


def check_lines(kind: str) -> None:
    """Whether this is a name of LINES."""
    if kind not in LINES:
        raise SettingsError(unknown_name("kind of lines", kind, list(LINES)))


def chosen_lines(kind: str, model: nn.Module, x: Tensor) -> Mapping[str, Line] | None:
    """The lines of this kind; None stands for the constant ones."""
    check_lines(kind)
    return fit_lines(model, x) if kind == "fitted" else None


def _least_squares(means: Tensor, dtype: torch.dtype) -> Line:
    """means: (4, *shape), of z, h, z^2 and z h."""
    z, h, square, product = means
    variance, covariance = square - z * z, product - z * h
    moves = variance > 1e-12 * square.clamp(min=torch.finfo(torch.float64).tiny)
    slope = torch.where(moves, covariance / torch.where(moves, variance, 1.0), 0.0)
    return Line(slope.to(dtype), (h - slope * z).to(dtype))
