"""The width of the output over the box, for each unit of input: what the paper's proofs use."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds import bound
from lipgraft.bounds.sound import guard_upper
from lipgraft.sensitivity.interval_jacobian import interval_jacobian
from lipgraft.sensitivity.problem import Problem, notion


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
