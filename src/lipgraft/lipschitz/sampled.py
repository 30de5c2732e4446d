"""A lower bound: the largest Jacobian row found at points of the box."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds.numerics import guard_lower
from lipgraft.box import Box
from lipgraft.lipschitz.adjoint import walk_back
from lipgraft.lipschitz.derivative import slope_at
from lipgraft.lipschitz.interval_jacobian import one_hot_rows
from lipgraft.lipschitz.problem import Problem, notion
from lipgraft.network import evaluate
from lipgraft.network.graph import Network
from lipgraft.network.nodes import Cache


def jacobian_rows(
    network: Network, x: Tensor, rows: Tensor, cache: Cache, steps: dict[int, Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """rows (N or 1, K, n) times the Jacobian at x (N, *input_shape): (N, K, *input_shape); and the nodes' values.

    steps: lengths by activation position, to make the result differentiable, see `slope_at`.
    """
    values = evaluate(network, x)

    def gate(i: int, node, g: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        slope = slope_at(node, values[node.inputs[0]], None if steps is None else steps.get(i))
        return g * slope.unsqueeze(1)

    end = walk_back(network, rows, lambda node, g, shape: node.transpose(g, shape, cache), gate)
    if end is None:
        end = rows.new_zeros(len(x), rows.shape[1], *network.input_shape)
    return end.expand(len(x), *end.shape[1:]), values


def row_norms(rows: Tensor, weight: Tensor) -> Tensor:
    """The l1 norm of each row: (N, K, *input_shape) -> (N, K)."""
    return (rows.abs() * weight).flatten(2).sum(-1)


@notion("sampled")
def sampled(problem: Problem) -> Tensor:
    """The largest norm of each output's row at random points, and on the way of an ascent from the best one: (B, n).

    A norm that is not a finite number counts as not found.
    """
    network, box, weight, settings = problem.network, problem.box, problem.weight, problem.settings
    all_rows = one_hot_rows(network, box.lower)
    cache: Cache = {}
    best = box.lower.new_full((len(box), all_rows.shape[1]), -torch.inf)
    start = box.centre.unsqueeze(1).repeat(1, all_rows.shape[1], *[1] * (box.lower.ndim - 1))
    low: dict[int, Tensor] = {}
    high: dict[int, Tensor] = {}
    for number in range(settings.samples):
        x = _draw(box, number, problem.generator)
        rows, values = jacobian_rows(network, x, all_rows, cache)
        norms = guard_lower(row_norms(rows, weight))
        better = norms > best
        best = torch.where(better, norms, best)
        start = torch.where(better.view(*better.shape, *[1] * (x.ndim - 1)), x.unsqueeze(1), start)
        for i, node in network.activations():
            z = values[node.inputs[0]]
            low[i], high[i] = torch.minimum(low.get(i, z), z), torch.maximum(high.get(i, z), z)
    widths = {i: high[i] - low[i] for i in low}
    if not widths or settings.steps == 0:
        return best
    return torch.maximum(best, _ascend(problem, start, widths, cache))


def _draw(box: Box, number: int, generator: torch.Generator) -> Tensor:
    """The centre, then corners and points inside in turn."""
    if number == 0:
        return box.centre
    share = torch.rand(box.lower.shape, dtype=box.lower.dtype, device=box.lower.device, generator=generator)
    if number % 2:
        share = share.round()
    return torch.lerp(box.lower, box.upper, share)


def _ascend(problem: Problem, start: Tensor, widths: dict[int, Tensor], cache: Cache) -> Tensor:
    """Follow the sign of the gradient of each row's norm: start (B, n, *input_shape) -> the best norms (B, n).

    The derivative of a ReLU's derivative is 0 almost everywhere, so its step is smoothed over a fraction of the range
    that the neuron's values showed over the box.
    """
    network, box, settings = problem.network, problem.box, problem.settings
    batch, outputs = start.shape[:2]
    lower, upper = (end.repeat_interleave(outputs, 0) for end in (box.lower, box.upper))
    steps = {i: (w.repeat_interleave(outputs, 0) / 8).clamp(min=1e-12) for i, w in widths.items()}
    rows = one_hot_rows(network, box.lower)[0].repeat(batch, 1).unsqueeze(1)
    x = start.flatten(0, 1)
    best = x.new_full((len(x),), -torch.inf)
    for t in range(settings.steps + 1):
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            norms = row_norms(jacobian_rows(network, point, rows, cache, steps)[0], problem.weight).squeeze(1)
            best = torch.maximum(best, guard_lower(norms.detach()))
            if t == settings.steps:
                break
            (gradient,) = torch.autograd.grad(norms.sum(), point, materialize_grads=True)
        length = (1 - t / settings.steps) * (upper - lower) / 4
        x = torch.minimum(torch.maximum(x + length * gradient.nan_to_num(nan=0.0).sign(), lower), upper)
    return best.view(batch, outputs)
