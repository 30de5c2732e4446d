"""The Jacobian in interval arithmetic: cheap, and loose, since every neuron's uncertainty is spread by |W|."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds import METHODS
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.sound import guard_upper
from lipgraft.network.graph import Activation, Affine, Network, Shape
from lipgraft.network.nodes import Cache
from lipgraft.sensitivity.chain_rule import walk_back
from lipgraft.sensitivity.problem import Problem, finite_images, notion, slope_ranges


@dataclass(frozen=True, eq=False)
class Range:
    """Adjoints between lower and upper, both (B, K, *shape)."""

    lower: Tensor
    upper: Tensor

    def __add__(self, other: Range) -> Range:
        return Range(self.lower + other.lower, self.upper + other.upper)


def through_slope(g: Range, slope: Interval) -> Range:
    """The range of d g for d in slope (B, *shape): the extremes of a product lie at the corners."""
    low, high = (end.unsqueeze(1) for end in slope)
    corners = (g.lower * low, g.lower * high, g.upper * low, g.upper * high)
    a, b = torch.minimum(*corners[:2]), torch.minimum(*corners[2:])
    c, d = torch.maximum(*corners[:2]), torch.maximum(*corners[2:])
    return Range(torch.minimum(a, b), torch.maximum(c, d))


class Transposes:
    """The transposed affine nodes and those of |W|, with the rearranged kernels of both kept."""

    def __init__(self) -> None:
        self._cache: Cache = {}
        self._magnitude_cache: Cache = {}

    def __call__(self, node: Affine, g: Range, shape: Shape) -> Range:
        """Centre through the matrix, radius through its absolute values."""
        centre = node.transpose((g.lower + g.upper) / 2, shape, self._cache)
        radius = node.magnitude().transpose((g.upper - g.lower) / 2, shape, self._magnitude_cache)
        return Range(centre - radius, centre + radius)


def one_hot_rows(network: Network, like: Tensor) -> Tensor:
    """The adjoints of the output: one row per output, (1, n, n)."""
    return torch.eye(network.output_shape[0], dtype=like.dtype, device=like.device).unsqueeze(0)


def interval_adjoints(network: Network, slopes: Mapping[int, Interval], rows: Tensor) -> Range:
    """The range of the Jacobian's rows over the batch, (B, K, *input_shape).

    slopes: the range of each activation's derivative, by position. rows: (B or 1, K, n) weights of the outputs.
    """

    def gate(i: int, node: Activation, g: Range) -> Range:
        return through_slope(g, slopes[i])

    batch = next((len(lower) for lower, _ in slopes.values()), len(rows))
    end = walk_back(network, Range(rows, rows), Transposes(), gate)
    if end is None:
        zero = rows.new_zeros(batch, rows.shape[1], *network.input_shape)
        return Range(zero, zero)
    return Range(end.lower.expand(batch, *end.lower.shape[1:]), end.upper.expand(batch, *end.upper.shape[1:]))


def norm_bound(t: Range, weight: Tensor) -> Tensor:
    """sum over inputs of weight max(|lower|, |upper|): (B, K). weight: (*input_shape,), see `units`."""
    return (torch.maximum(t.lower.abs(), t.upper.abs()) * weight).flatten(2).sum(-1)


@notion("interval-jacobian")
def interval_jacobian(problem: Problem) -> Tensor:
    """sum over inputs of the largest |dy/dx| that interval arithmetic allows: (B, n)."""
    return interval_norms(problem)[0]


def interval_norms(problem: Problem) -> tuple[Tensor, dict[int, Interval]]:
    """`interval_jacobian`, with the ranges of the derivatives that it came from."""
    backward, _ = METHODS[problem.settings.bounds]
    prepared = prepare(problem.network, problem.box, backward=backward)
    slopes = slope_ranges(problem.network, prepared.layers())
    norms = range_norms(problem, slopes)
    return torch.where(finite_images(prepared)[:, None], norms, torch.inf), slopes


def range_norms(problem: Problem, slopes: Mapping[int, Interval]) -> Tensor:
    """Bounds of the l1 norms of all rows, from the ranges of the derivatives, by interval arithmetic: (B, n)."""
    rows = one_hot_rows(problem.network, problem.box.lower).expand(len(problem.box), -1, -1)
    return guard_upper(norm_bound(interval_adjoints(problem.network, slopes, rows), problem.weight))
