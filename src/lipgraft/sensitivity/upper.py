"""The cheap upper notions: the output's width, and the Jacobian in interval arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipgraft.bounds import METHODS, bound
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.numerics import guard_upper
from lipgraft.sensitivity.interval_jacobian import interval_adjoints, norm_bound, one_hot_rows
from lipgraft.sensitivity.problem import Problem, finite_images, notion, slope_ranges


@notion("output-width", double=True)
def output_width(problem: Problem) -> Tensor:
    """(ub - lb) / (2 eps) of every output, the quantity in the paper's proofs. (B, n).

    In double precision: where eps is small, ub - lb is a difference of numbers that agree in most digits.
    The box may be clipped and then narrower than 2 eps; the division is by 2 eps all the same. In normalised units eps
    is multiplied by the mean scale of the inputs. Where eps is 0, the limit: the point's Jacobian norm.
    """
    network, box, eps = problem.network, problem.box, problem.eps
    bounds = bound(network, box, method=problem.settings.bounds)
    width = (bounds.upper - bounds.lower) / torch.where(eps > 0, 2 * eps, 1.0)[:, None]
    used = problem.weight[problem.weight > 0]
    width = width * (1 / (1 / used).mean() if len(used) else 0.0)
    if bool((eps == 0).any()):
        width = torch.where((eps == 0)[:, None], interval_jacobian(problem), width)
    return guard_upper(width)


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
