"""How far rounding can move the values of a graph: errors carried from node to node, element by element."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lipgraft.network.graph import Activation, Affine, Network, Node, Planar

_UNITS = 100
"""By how many units of its size a node may err in a tolerance: more than summation does, because a model may compute
what the graph does by another formula (BatchNorm, curves), and because errors are not quite independent."""

_LAST_UNITS = 16
"""The same for the last node alone, where a look at more would not pay."""


def rounding_errors(network: Network, values: list[Tensor]) -> list[Tensor]:
    """An upper bound of every value's rounding error, whatever the order of summation. values: of all nodes.

    n products and additions err by at most n + 1 units of the sum of the terms' absolute values. The worst cases of all
    nodes add up, so behind many layers this is far more than what happens.
    """
    unit = torch.finfo(values[0].dtype).eps
    sizes = _sizes(network, values)
    own = [unit * (node.terms + 1) * size for node, size in zip(network.nodes, sizes, strict=True)]
    return _carried(network, values, own, power=1)


def rounding_tolerance(network: Network, values: list[Tensor]) -> Tensor:
    """By how much two ways of computing the same outputs may differ: (B, outputs), in double. values: of all nodes.

    The errors of different neurons are as good as independent, so their squares add up. Neurons that an output does not
    read have no part in it, however large they are. Where it is too much because errors cancel, as in the sums that
    stand for max pooling, the largest number before the outputs sets the limit. 0 where numbers on the way are not
    finite.
    """
    unit = torch.finfo(values[0].dtype).eps
    network = network.to(dtype=torch.float64)  # squares need twice the range
    values = [value.double() for value in values]
    own = [_UNITS * unit * size for size in _sizes(network, values)]
    errors = _carried(network, values, own, power=2)
    largest = torch.stack([size.flatten(1).amax(1) for size in own[: max(1, network.output)]]).amax(0)
    return torch.minimum(errors[network.output], largest[:, None] + own[network.output]).nan_to_num(nan=0.0, posinf=0.0)


def last_rounding(network: Network, values: list[Tensor]) -> Tensor:
    """A part of what `rounding_tolerance` allows that takes no time to find: (B, outputs). values: of all nodes."""
    node = network.nodes[network.output]
    size = _size(node, values[network.output], [values[j] for j in node.inputs])
    return torch.nan_to_num(_LAST_UNITS * torch.finfo(size.dtype).eps * size, nan=0.0, posinf=0.0)


def _carried(network: Network, values: list[Tensor], own: list[Tensor], power: Literal[1, 2]) -> list[Tensor]:
    """Every node's own errors together with those of its inputs: e**p = |W|**p e_in**p + own**p."""
    errors = [own[0]]
    for i, node in enumerate(network.nodes[1:], 1):
        before = [errors[j] for j in node.inputs]
        if isinstance(node, Affine):
            weights = node.magnitude() if power == 1 else node.squared()
            carried = weights.linear(*(error**power for error in before))
        elif isinstance(node, Activation | Planar):
            around = zip((values[j] for j in node.inputs), before, strict=True)
            low, high = node.interval(*((z - error, z + error) for z, error in around))
            carried = torch.maximum(high - values[i], values[i] - low) ** power
        else:
            carried = node.absolute(*before) ** power
        errors.append((carried + own[i] ** power) ** (1 / power))
    return errors


def _sizes(network: Network, values: list[Tensor]) -> list[Tensor]:
    """The sum of the absolute values that each node adds up, which its value may be far below; 0 at the input."""
    nodes = zip(network.nodes[1:], values[1:], strict=True)
    return [torch.zeros_like(values[0]), *(_size(n, value, [values[j] for j in n.inputs]) for n, value in nodes)]


def _size(node: Node, value: Tensor, inputs: list[Tensor]) -> Tensor:
    if isinstance(node, Planar):
        return value.abs()
    if not isinstance(node, Activation):
        return node.absolute(*(v.abs() for v in inputs))
    size, z = value.abs(), inputs[0].abs()
    if not node.curve.kinks:
        size = size + z.clamp(max=1.0)  # the parts of a smooth curve's formula may cancel, where z is not large
    return size if node.graft is None else torch.where(node.graft.mask, node.absolute(z), size)
