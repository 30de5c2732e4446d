"""The Jacobian by linear bound propagation, with the remainders bounded one by one and all together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.bounds.memory import LIVE, chunked
from lipgraft.sensitivity.branching import branched_norms
from lipgraft.sensitivity.expansion import expand, linear_norms
from lipgraft.sensitivity.interval_jacobian import interval_norms, one_hot_rows
from lipgraft.sensitivity.middle_network import Middle, effects, strongest
from lipgraft.sensitivity.problem import Problem, notion
from lipgraft.sensitivity.quadratic import quadratic_norms

GPU_BUDGET = 18 * 2**30
"""Bytes for images taken together: the small factors on their matrices' diagonals take as long for one as for fifty."""


@notion("jacobian")
def jacobian(problem: Problem) -> Tensor:
    """The least of three bounds of the l1 norm of every output's row, or what branching makes of it: (B, n)."""
    norms, slopes = interval_norms(problem)
    norms = refined_norms(problem, slopes, norms)
    return branched_norms(problem, norms, refined_norms) if problem.settings.branches else norms


def refined_norms(problem: Problem, slopes: Mapping[int, Interval], norms: Tensor) -> Tensor:
    """norms (B, n), made smaller where they are finite and some derivative is not known."""
    counts = torch.zeros(len(norms), dtype=torch.long, device=norms.device)
    for low, high in slopes.values():
        counts = counts + (low != high).flatten(1).sum(1)
    # Images with about as many uncertain neurons stand side by side, since they share the size of their matrices.
    order = counts.argsort(stable=True)
    images = order[(counts[order] > 0) & norms[order].isfinite().all(1)]
    out = norms.clone()
    if len(images) == 0:
        return out
    limit = problem.settings.together
    limit = limit if limit is not None else default_together(norms.device)
    most, inputs = int(counts.max()), problem.weight.numel()
    kept = min(limit, most)

    def work(part: slice, _: slice) -> None:
        here = images[part]
        some = {i: (low[here], high[here]) for i, (low, high) in slopes.items()}
        out[here] = torch.minimum(out[here], _expanded_norms(problem, some, limit))

    floats = kept * (2 * inputs + 5 * kept) + 8 * norms.shape[1] * (inputs + most)
    chunked(len(images), 1, floats * out.element_size() // LIVE, out.device, work, most=GPU_BUDGET)
    return out


def default_together(device: torch.device) -> int:
    """So many neurons that their matrix is factored in about a second; CNN-B has up to 3,500 uncertain ones."""
    return 12288 if device.type == "cuda" else 4096


def _expanded_norms(problem: Problem, slopes: Mapping[int, Interval], limit: int) -> Tensor:
    """The bounds that see remainders carried through the layers with their signs: (B, n)."""
    network, weight = problem.network, problem.weight
    batch = len(next(iter(slopes.values()))[0])
    rows = one_hot_rows(network, weight).expand(batch, -1, -1)
    kept = {i: (low != high).flatten(1) for i, (low, high) in slopes.items()}
    if int(torch.stack([k.sum(1) for k in kept.values()]).sum(0).max()) > limit:
        kept = strongest(effects(network, slopes, rows, weight), limit)
    middle = Middle.of(network, slopes, kept)
    expansion = expand(middle, rows, weight)
    norms = linear_norms(middle, expansion, weight)
    if expansion.spans:
        norms = torch.minimum(norms, quadratic_norms(expansion, problem.settings.iterations))
    return norms
