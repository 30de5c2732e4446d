"""Fully split subproblems: the network is affine there, and a linear program decides exactly.

With the activation pattern fixed, every split pre-activation is a_k x + b_k, with sign constraint g_k(x) <= 0, and the
margin is c x + d. The program min c x + d + M t over the box with g(x) <= t, t >= 0 always has a solution. Its
multipliers beta, with sum(beta) <= M, give the dual bound min over the box of c x + d + beta g(x), which is evaluated
here in double precision: a proof does not rest on the solver's word. If no input satisfies the splits, t > 0 makes the
bound as large as M allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from lipgraft.network.graph import Activation, Input
from lipgraft.verify.bounding import clamped
from lipgraft.verify.layout import left_slope
from lipgraft.verify.roots import Roots
from lipgraft.verify.subproblems import Subproblems

PENALTY = 1e4  # M, times the size of the margin's coefficients
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Leaf:
    """bound: proved lower bound of the margin; point: (*input shape), where the program attains its minimum."""

    bound: float
    point: Tensor


def solve_leaf(roots: Roots, sub: Subproblems, row: int, size: int) -> Leaf | None:
    """Bound subproblem `row` of a batch exactly; None when the program would have more than `size` entries."""
    image = sub.image[row : row + 1]
    neuron, sign = sub.neuron[row : row + 1], sub.sign[row : row + 1]
    inputs = roots.low[0].numel()
    if inputs * (int((sign != 0).sum()) + 1) > size or inputs * roots.layout.size > 64 * size:
        return None
    lower, _ = clamped(roots.lower[image], roots.upper[image], neuron, sign)
    matrix, offset, margin, constant = _affine(roots, image, sub.target[row : row + 1], lower)
    split = sign[0] != 0
    kept, signs = neuron[0][split].cpu().numpy(), sign[0][split].double().cpu().numpy()
    # z >= 0 (sign +1) reads -z <= 0.
    g, h = -signs[:, None] * matrix[kept], -signs * offset[kept]
    low, high = (end[image][0].flatten().double().cpu().numpy() for end in (roots.low, roots.high))
    bound, x = _program(g, h, margin, constant, low, high)
    point = torch.from_numpy(x).to(roots.low).reshape(roots.low.shape[1:])
    point = torch.minimum(torch.maximum(point, roots.low[image][0]), roots.high[image][0])
    return Leaf(bound, point)


def _program(g: Array, h: Array, c: Array, d: float, low: Array, high: Array) -> tuple[float, Array]:
    """min c x + d over low <= x <= high with g x + h <= 0: a proved lower bound of it, and a minimiser."""
    scale = max(float(np.abs(c).max(initial=0.0)), 1e-12)
    if len(g) == 0:
        return float(d + np.minimum(c * low, c * high).sum()), np.where(c > 0, low, high)
    rows = np.concatenate([g, -np.ones((len(g), 1))], 1)
    cost = np.append(c / scale, PENALTY)
    limits = np.stack([np.append(low, 0.0), np.append(high, np.inf)], 1)
    solved = linprog(cost, rows, -h, bounds=limits, method="highs")
    if solved.x is None:
        return -np.inf, np.where(c > 0, low, high)
    beta = np.maximum(-solved.ineqlin.marginals, 0.0) * scale
    slope = c + beta @ g
    dual = d + beta @ h + np.minimum(slope * low, slope * high).sum()
    return float(dual), np.clip(solved.x[:-1], low, high)


def _affine(roots: Roots, image: Tensor, target: Tensor, lower: Tensor) -> tuple[Array, Array, Array, float]:
    """Pre-activations z = matrix x + offset on the flat axis, and the margin's coefficients and constant.

    lower: (1, N + 1), of a subproblem in which every neuron is stable.

    The network with fixed slopes is affine: its values at zero and at the unit vectors say everything.
    """
    layout = roots.layout
    network = layout.network.to(dtype=torch.float64)
    shape = network.input_shape
    inputs = roots.low[0].numel()
    points = torch.eye(inputs, dtype=torch.float64, device=lower.device)
    x = torch.cat([torch.zeros_like(points[:1]), points]).view(-1, *shape)
    lows = layout.pieces(lower)
    values: list[Tensor] = []
    for i, node in enumerate(network.nodes):
        if isinstance(node, Input):
            values.append(x)
        elif isinstance(node, Activation) and i in layout.places:
            values.append(_line(node, values[node.inputs[0]], lows[i][0, 0]))
        elif i > network.output:
            values.append(x)  # nothing reads it
        else:
            values.append(node.forward(*(values[j] for j in node.inputs)))

    def split(value: Tensor) -> tuple[Array, Array]:
        flat = value.flatten(1).cpu().numpy()
        return (flat[1:] - flat[0]).T, flat[0]

    parts = [split(values[network.nodes[i].inputs[0]]) for i in layout.places]
    matrix = np.concatenate([m for m, _ in parts]) if parts else np.zeros((0, inputs))
    offset = np.concatenate([b for _, b in parts]) if parts else np.zeros(0)
    row = roots.margins(image, target)[0, 0, 0].double().cpu().numpy()
    out, start = split(values[network.output])
    return matrix, offset, row @ out, float(row @ start)


def _line(node: Activation, z: Tensor, lower: Tensor) -> Tensor:
    """The activation's line on a stable interval; a grafted neuron's own line."""
    h = torch.where(lower >= 0, z, left_slope(node) * z)
    if node.graft is not None:
        h = torch.where(node.graft.mask, node.graft.gamma * z + node.graft.omega, h)
    return h
