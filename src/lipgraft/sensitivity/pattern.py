"""Activation patterns: whether inputs exist for which some pre-activations have given signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.box import Box
from lipgraft.errors import NumericalError
from lipgraft.network.graph import Activation, Input, Network
from lipgraft.sensitivity.middle import Middle

INFEASIBLE = 2
"""The word of `linprog` for: no such point."""


@dataclass(frozen=True)
class Split:
    """The pre-activation of one neuron is >= 0 (positive) or <= 0. neuron: its flat place in the layer."""

    position: int
    neuron: int
    positive: bool


def occurs(network: Network, box: Box, slopes: Mapping[int, Interval], splits: Sequence[Split]) -> bool:
    """Whether the box, one, holds an input with these signs. Every derivative must be known: slopes (1, *shape).

    Then every pre-activation is a linear function of the input, and the question is a linear program.
    """
    from scipy.optimize import linprog  # here, because few need it and it is slow to import

    if not splits:
        return True
    middle = Middle.of(network, slopes, {i: torch.zeros_like(low.flatten(1)).bool() for i, (low, _) in slopes.items()})
    at_centre = _values(network, box.centre, middle.centre)
    rows, limits = [], []
    for split in splits:
        target = network.nodes[split.position].inputs[0]
        start = torch.zeros_like(at_centre[target]).flatten()
        start[split.neuron] = 1.0
        row = middle.back(start.view(1, 1, *network.nodes[target].shape), target, slice(0, 1), {}).flatten()
        constant = at_centre[target].flatten()[split.neuron] - row @ box.centre.flatten()
        sign = -1.0 if split.positive else 1.0  # sign * (row x + constant) <= 0
        rows.append(sign * row)
        limits.append(-sign * constant)
    ends = torch.stack([box.lower.flatten(), box.upper.flatten()], 1)
    zero = torch.zeros(box.lower[0].numel())
    result = linprog(
        zero.numpy(), torch.stack(rows).cpu().numpy(), torch.stack(limits).cpu().numpy(), bounds=ends.cpu().numpy()
    )
    if result.status not in (0, INFEASIBLE):
        raise NumericalError(f"the linear program of an activation pattern failed: {result.message}")
    return bool(result.status == 0)


def _values(network: Network, x: Tensor, slope: Mapping[int, Tensor]) -> list[Tensor]:
    """The value of every node when each activation is the line of its known slope, through 0 or grafted."""
    values: list[Tensor] = []
    for i, node in enumerate(network.nodes):
        inputs = [values[j] for j in node.inputs]
        if isinstance(node, Input):
            value = x
        elif isinstance(node, Activation):
            value = slope[i] * inputs[0]
            if node.graft is not None:
                value = value + torch.where(node.graft.mask, node.graft.omega, 0.0)
        else:
            value = node.forward(*inputs)
        values.append(value)
    return values
