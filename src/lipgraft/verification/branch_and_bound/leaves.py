"""Fully split subproblems: the network is affine there, and a linear program decides exactly.

With the activation pattern fixed, every split pre-activation is a_k x + b_k, with sign constraint g_k(x) <= 0, and the
margin is c x + d. The program min c x + d + M t over the box with g(x) <= t, t >= 0 always has a solution. Its
multipliers beta, with sum(beta) <= M, give the dual bound min over the box of c x + d + beta g(x), which is evaluated
here in double precision, and once more like every other bound where proofs are sound: a proof does not rest on the
solver's word. If no input satisfies the splits, t > 0 makes the bound as large as M allows. The solver's tolerances are
absolute, so it sees a scaled program: the box becomes [-1, 1], and every row and the cost are divided by how much they
vary there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lipgraft.bounds.layout import left_slope
from lipgraft.bounds.sound import proved
from lipgraft.bounds.splits import clamped
from lipgraft.network.graph import Activation, Input, Planar
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.certificate import Drafts

PENALTY = 1e4  # M in the scaled program, where the margin varies by 1
PIECE = 64  # unit vectors that go through the network between two looks at the clock
Array = np.ndarray
Left = Callable[[], float]
"""Seconds that are left; 0 or less: none."""


class OutOfTimeError(Exception):
    """The clock ran out before a leaf was solved."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """bound: proved lower bound of the margin; point: (*input shape), where the program attains its minimum.

    beta: the multipliers of the splits, in their order, that give the bound.
    """

    bound: float
    point: Tensor
    beta: Tensor


def solve_leaf(images: Images, sub: Subproblems, row: int, size: int, left: Left = lambda: float("inf")) -> Leaf | None:
    """Bound subproblem `row` of a batch exactly; None when the program would have more than `size` entries, and where
    an activation or a product is curved: no split makes it a line.

    OutOfTimeError when no time is left before it is solved.
    """
    if images.layout.curved or any(isinstance(node, Planar) for node in images.layout.network.nodes):
        return None
    image = sub.image[row : row + 1]
    neuron, sign = sub.neuron[row : row + 1], sub.sign[row : row + 1]
    inputs = images.box[0][0].numel()
    if inputs * (int((sign != 0).sum()) + 1) > size or inputs * images.layout.size > 64 * size:
        return None
    lower, upper = clamped(images.bounds.lower[image], images.bounds.upper[image], neuron, sign)
    if images.implied is not None:
        lower, _ = images.implied.narrowed(lower, upper, images.implied.neurons[image], image, neuron, sign)
    split = sign[0] != 0
    matrix, offset, margin, constant = _affine(images, image, sub.target[row : row + 1], lower, neuron[0][split], left)
    signs = sign[0][split].double().cpu().numpy()
    # z >= 0 (sign +1) reads -z <= 0.
    g, h = -signs[:, None] * matrix, -signs * offset
    low, high = (end[image][0].flatten().double().cpu().numpy() for end in images.box)
    bound, x, beta = _program(g, h, margin, constant, low, high, left)
    point = torch.from_numpy(x).to(images.box[0]).reshape(images.box[0].shape[1:])
    inner = images.inner[0][image][0], images.inner[1][image][0]
    return Leaf(bound, torch.minimum(torch.maximum(point, inner[0]), inner[1]), torch.from_numpy(beta))


def _program(
    g: Array, h: Array, c: Array, d: float, low: Array, high: Array, left: Left = lambda: float("inf")
) -> tuple[float, Array, Array]:
    """min c x + d over low <= x <= high with g x + h <= 0: a lower bound of it, a minimiser, and the multipliers."""
    from scipy.optimize import linprog  # here, because few need it and it is slow to import

    if len(g) == 0:
        return float(d + np.minimum(c * low, c * high).sum()), np.where(c > 0, low, high), np.zeros(0)
    centre, radius = (low + high) / 2, (high - low) / 2
    cost, rows = c * radius, g * radius
    limits = -(h + g @ centre)
    scale = _size(np.abs(cost).sum())
    sizes = _size(np.abs(rows).sum(1))
    solved = linprog(
        np.append(cost / scale, PENALTY),
        np.concatenate([rows / sizes[:, None], -np.ones((len(g), 1))], 1),
        limits / sizes,
        bounds=[(-1.0, 1.0)] * len(c) + [(0.0, None)],
        method="highs",
        options={"time_limit": max(left(), 1e-3)},
    )
    if left() <= 0:
        raise OutOfTimeError
    if solved.status != 0:
        return -np.inf, np.where(c > 0, low, high), np.zeros(len(g))
    beta = np.maximum(-solved.ineqlin.marginals, 0.0) * scale / sizes
    slope = c + beta @ g
    dual = d + beta @ h + np.minimum(slope * low, slope * high).sum()
    return float(dual), np.clip(centre + radius * solved.x[:-1], low, high), beta


def _size(variation: Array) -> Array:
    """What to divide by; 1 for what does not vary at all."""
    return np.where((variation > 0) & np.isfinite(variation), variation, 1.0)


def _affine(
    images: Images, image: Tensor, target: Tensor, lower: Tensor, kept: Tensor, left: Left
) -> tuple[Array, Array, Array, float]:
    """The pre-activations `kept`, z = matrix x + offset, and the margin's coefficients and constant.

    lower: (1, N + 1), of a subproblem in which every neuron is stable. kept: (K,), on the flat axis.

    The network with fixed slopes is affine: its values at zero and at the unit vectors say everything.
    """
    layout = images.layout
    network = layout.network.to(dtype=torch.float64)
    inputs = images.box[0][0].numel()
    lows = layout.pieces(lower)
    row = images.margins(image, target)[0, 0, 0].double()

    def values(x: Tensor) -> Tensor:
        """The kept pre-activations and the margin at points: (P, inputs) -> (P, K + 1)."""
        out: list[Tensor] = []
        for i, node in enumerate(network.nodes):
            if isinstance(node, Input):
                out.append(x.view(-1, *network.input_shape))
            elif isinstance(node, Activation) and i in layout.places:
                out.append(_line(node, out[node.inputs[0]], lows[i][0, 0]))
            elif i > network.output:
                out.append(x)  # nothing reads it
            else:
                out.append(node.forward(*(out[j] for j in node.inputs)))
        parts = [out[network.nodes[i].inputs[0]].flatten(1) for i in layout.places]
        flat = torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)
        return torch.cat([flat[:, kept], (out[network.output] @ row)[:, None]], 1)

    zero = torch.zeros(1, inputs, dtype=torch.float64, device=lower.device)
    start = values(zero)
    columns: list[Tensor] = []
    for first in range(0, inputs, PIECE):
        if left() <= 0:
            raise OutOfTimeError
        count = min(PIECE, inputs - first)
        units = zero.repeat(count, 1)
        units[torch.arange(count), torch.arange(first, first + count)] = 1.0
        columns.append(values(units) - start)
    matrix, offset = torch.cat(columns).T.cpu().numpy(), start[0].cpu().numpy()
    return matrix[:-1], offset[:-1], matrix[-1], float(offset[-1])


def _line(node: Activation, z: Tensor, lower: Tensor) -> Tensor:
    """The activation's line on a stable interval; a grafted neuron's own line."""
    h = torch.where(lower >= 0, z, left_slope(node) * z)
    if node.graft is not None:
        h = torch.where(node.graft.mask, node.graft.gamma * z + node.graft.omega, h)
    return h


def exact_bound(images: Images, one: Subproblems, leaf: Leaf | None, batch: int, drafts: Drafts | None) -> float:
    """The bound that a leaf's program, if it has one, proves; its multipliers are evaluated like all others.

    one: the subproblem alone; drafts: where what it proves is kept, if anywhere.
    """
    if leaf is None:
        return -torch.inf
    if images.proof is None:
        return leaf.bound
    beta = one.beta.new_zeros(one.beta.shape).masked_scatter(one.sign != 0, leaf.beta.to(one.beta))
    one = replace(one, bound=torch.full_like(one.bound, leaf.bound), beta=beta)
    bound = images.proved_bounds(one, batch)
    if drafts is not None:
        drafts.add(images, one.at(proved(bound)))
    return float(bound)
