"""A lower bound: the largest Jacobian row found at points of the box."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.sound import guard_lower
from lipgraft.box import Box
from lipgraft.network import evaluate, rounding_errors
from lipgraft.network.graph import Activation, Network
from lipgraft.network.nodes import Cache
from lipgraft.sensitivity.chain_rule import slope_at, walk_back
from lipgraft.sensitivity.interval_jacobian import one_hot_rows
from lipgraft.sensitivity.problem import Problem, notion


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


@notion("sampled", double=True, lower=True)
def sampled(problem: Problem) -> Tensor:
    """The largest norm of each output's row at random points, and on the way of an ascent from the best one: (B, n).

    A point at a kink of the network counts with 0: what the rows give there need not be a derivative. So does one so
    near to it that rounding could put a neuron on the wrong side; in double precision few are. A norm that is not a
    finite number counts as not found.
    """
    network, rows, cache = problem.network, one_hot_rows(problem.network, problem.box.lower), dict[object, Tensor]()
    state = problem.generator.get_state()
    best, start, widths = _drawn(problem, rows, cache, ask=False)
    # Whether there is a kink is asked at the best points alone. Few are at one; if any is, every point is asked.
    smooth = differentiable(network, evaluate(network, start.flatten(0, 1))).view_as(best)
    if not bool((smooth | (best <= 0)).all()):
        problem.generator.set_state(state)
        best, start, widths = _drawn(problem, rows, cache, ask=True)
    if not widths or problem.settings.steps == 0:
        return best
    return torch.maximum(best, _ascend(problem, start, widths, cache))


def _drawn(problem: Problem, all_rows: Tensor, cache: Cache, *, ask: bool) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """At random points: the largest norms (B, n), the points that have them, and how far each neuron's values range.

    ask: norms at a kink count with 0.
    """
    network, box = problem.network, problem.box
    best = box.lower.new_full((len(box), all_rows.shape[1]), -torch.inf)
    start = box.centre.unsqueeze(1).repeat(1, all_rows.shape[1], *[1] * (box.lower.ndim - 1))
    low: dict[int, Tensor] = {}
    high: dict[int, Tensor] = {}
    for number in range(problem.settings.samples):
        x = _draw(box, number, problem.generator)
        rows, values = jacobian_rows(network, x, all_rows, cache)
        norms = guard_lower(row_norms(rows, problem.weight))
        raised = _raised(network, values, norms, best) if ask else torch.maximum(norms, best)
        better = raised > best
        best = raised
        start = torch.where(better.view(*better.shape, *[1] * (x.ndim - 1)), x.unsqueeze(1), start)
        for i, node in network.activations():
            z = values[node.inputs[0]]
            low[i], high[i] = torch.minimum(low.get(i, z), z), torch.maximum(high.get(i, z), z)
    return best, start, {i: high[i] - low[i] for i in low}


@torch.no_grad()
def _raised(network: Network, values: list[Tensor], norms: Tensor, best: Tensor) -> Tensor:
    """The larger of norms and best, (N, ...); norms count with 0 where the rows need not be those of a derivative.

    Only where norms are larger is that looked at.
    """
    larger = norms > best
    some = torch.nonzero(larger.view(len(larger), -1).any(1)).flatten()
    if not len(some):
        return best
    smooth = larger.new_ones(len(larger))
    smooth[some] = differentiable(network, [value[some] for value in values])
    true = torch.where(smooth.view(-1, *[1] * (norms.ndim - 1)), norms, 0.0)
    return torch.where(larger, torch.maximum(true, best), best)


def differentiable(network: Network, values: list[Tensor]) -> Tensor:
    """Whether no neuron that moves with the input may be at its kink: (N,). values: of all nodes, (N, *shape).

    Beside every value go an upper bound of its rounding error, and whether it moves at all near this point: what only
    inactive ReLUs feed does not, and its kink does not matter.
    """
    smooth = torch.ones(len(values[0]), dtype=torch.bool, device=values[0].device)
    errors, moving = rounding_errors(network, values), [torch.ones_like(values[0])]
    for node in network.nodes[1 : network.output + 1]:
        moves = (node.absolute(*(moving[j] for j in node.inputs), constant=False) > 0).to(values[0].dtype)
        if isinstance(node, Activation):
            (j,) = node.inputs
            at_kink, flat = _near_kinks(node, values[j], errors[j])
            smooth &= ~(at_kink & (moving[j] > 0)).flatten(1).any(1)
            moves = torch.where(flat, 0.0, moves)
        moving.append(moves)
    return smooth


def _near_kinks(node: Activation, z: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Where z, known up to an error, may be at a kink of the curve, and where it is surely on a flat piece of it."""
    curve, at_kink, flat = node.curve, torch.zeros_like(z, dtype=torch.bool), torch.zeros_like(z, dtype=torch.bool)
    for kink in curve.kinks:
        at_kink |= (z - kink).abs() <= error
    for slope, left, right in zip(
        curve.slopes, (-torch.inf, *curve.kinks), (*curve.kinks, torch.inf), strict=bool(curve.slopes)
    ):
        if slope == 0:
            flat |= (z - error > left) & (z + error < right)
    if node.graft is not None:
        at_kink, flat = at_kink & ~node.graft.mask, flat & ~node.graft.mask
    return at_kink, flat


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
    that the neuron's values showed over the box. To look for points single precision will do; what counts is the norm
    in double precision at the best point of each way. A way whose best point is at a kink is gone again in double
    precision, with a look at every point.
    """
    network, box = problem.network, problem.box
    batch, outputs = start.shape[:2]
    lower, upper = (end.repeat_interleave(outputs, 0) for end in (box.lower, box.upper))
    steps = {i: (w.repeat_interleave(outputs, 0) / 8).clamp(min=1e-12) for i, w in widths.items()}
    rows = one_hot_rows(network, box.lower)[0].repeat(batch, 1).unsqueeze(1)
    way = _Way(network, start.flatten(0, 1), lower, upper, steps, rows, problem.weight, problem.settings.steps)
    _, points = way.single().climb({}, ask=False)
    points = torch.minimum(torch.maximum(points.to(lower.dtype), lower), upper)
    found, values = jacobian_rows(network, points, rows, cache)
    norms = guard_lower(row_norms(found, problem.weight).squeeze(1))
    best = _raised(network, values, norms, torch.full_like(norms, -torch.inf))
    at_kink = torch.nonzero(best < norms).flatten()
    if len(at_kink):
        best[at_kink], _ = way.at(at_kink).climb(cache, ask=True)
    return best.view(batch, outputs)


@dataclass(frozen=True, eq=False)
class _Way:
    """Where ascents start, x (N, *input_shape), and between which ends they stay. steps: as in `jacobian_rows`, each
    (N, *shape); rows: (N, 1, n); count: how many steps up.
    """

    network: Network
    x: Tensor
    lower: Tensor
    upper: Tensor
    steps: dict[int, Tensor]
    rows: Tensor
    weight: Tensor
    count: int

    def single(self) -> _Way:
        """The same in single precision."""
        x, lower, upper, rows, weight = (t.float() for t in (self.x, self.lower, self.upper, self.rows, self.weight))
        steps = {i: step.float() for i, step in self.steps.items()}
        return _Way(self.network.to(dtype=torch.float32), x, lower, upper, steps, rows, weight, self.count)

    def at(self, some: Tensor) -> _Way:
        """Some of the ways."""
        steps = {i: step[some] for i, step in self.steps.items()}
        parts = self.x[some], self.lower[some], self.upper[some], steps, self.rows[some]
        return _Way(self.network, *parts, self.weight, self.count)

    def climb(self, cache: Cache, *, ask: bool) -> tuple[Tensor, Tensor]:
        """The best norms on the way, (N,), and the points that have them. ask: norms at a kink count with 0."""
        x = points = self.x
        best = x.new_full((len(x),), -torch.inf)
        for t in range(self.count + 1):
            with torch.enable_grad():
                point = x.detach().requires_grad_()
                found, values = jacobian_rows(self.network, point, self.rows, cache, self.steps)
                norms = row_norms(found, self.weight).squeeze(1)
                low = guard_lower(norms.detach())
                raised = _raised(self.network, values, low, best) if ask else torch.maximum(low, best)
                points = torch.where((raised > best).view(-1, *[1] * (x.ndim - 1)), x, points)
                best = raised
                if t == self.count:
                    break
                (gradient,) = torch.autograd.grad(norms.sum(), point, materialize_grads=True)
            length = (1 - t / self.count) * (self.upper - self.lower) / 4
            x = torch.minimum(torch.maximum(x + length * gradient.nan_to_num(nan=0.0).sign(), self.lower), self.upper)
        return best, points
