"""Exact least values of piecewise linear networks over boxes, by mixed-integer programs (SciPy's HiGHS)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn

from lipgraft.bounds import interval_bounds
from lipgraft.box import Box
from lipgraft.network import Activation, Network, trace


@dataclass
class Encoding:
    """Affine values of every node in terms of the variables: matrix (n, V) and offset (n,)."""

    matrix: np.ndarray
    offset: np.ndarray


def double(model: nn.Module, shape: tuple[int, ...] = (4,)) -> Network:
    return trace(model, shape).to(dtype=torch.float64)


def exact_margin(net: Network, x: Tensor, y: int, eps: float) -> float:
    """The smallest of (true logit - other logit) over the box around x, inside [0, 1]."""
    box = Box.linf(x[None].double(), eps)
    return least_margin(net, box.lower[0], box.upper[0], y)


def least_margin(net: Network, lower: Tensor, upper: Tensor, y: int) -> float:
    """The smallest of (true logit - other logit) over a box of vectors, lower and upper (d,), in double precision."""
    classes = np.eye(net.output_shape[0])
    return float(least(net, lower, upper, np.delete(classes[y] - classes, y, axis=0)).min())


def least(net: Network, lower: Tensor, upper: Tensor, rows: np.ndarray) -> np.ndarray:
    """The least value of each row (S, n) times the outputs over a box of vectors, one program for each: (S,)."""
    box = Box(lower[None], upper[None])
    intervals = interval_bounds(net, box)
    kinks = [
        (i, j)
        for i, node in net.activations()
        for j in range(node.shape[0])
        if not grafted(node, j)
        and float(intervals[node.inputs[0]][0][0, j]) < 0 < float(intervals[node.inputs[0]][1][0, j])
    ]
    number = {kink: k for k, kink in enumerate(kinks)}
    inputs, total = lower.numel(), lower.numel() + 2 * len(kinks)  # x, then the kinks' outputs, then their switches
    values: list[Encoding] = []
    constraints: list[np.ndarray] = []
    limits: list[float] = []
    for i, node in enumerate(net.nodes):
        if i == 0:
            values.append(Encoding(np.eye(inputs, total), np.zeros(inputs)))
        elif isinstance(node, Activation):
            z = values[node.inputs[0]]
            out = Encoding(np.zeros_like(z.matrix), np.zeros_like(z.offset))
            for j in range(node.shape[0]):
                low, high = (float(end[0, j]) for end in intervals[node.inputs[0]])
                if (i, j) in number:
                    h, switch = inputs + number[i, j], inputs + len(kinks) + number[i, j]
                    out.matrix[j, h] = 1.0
                    a, e = node.curve.slopes[0], np.eye(total)
                    # h >= z, h >= a z, h <= z - (1 - a) low (1 - s), h <= a z + (1 - a) high s
                    constraints += [z.matrix[j] - e[h], a * z.matrix[j] - e[h]]
                    limits += [-z.offset[j], -a * z.offset[j]]
                    constraints += [
                        e[h] - z.matrix[j] - (1 - a) * low * e[switch],
                        e[h] - a * z.matrix[j] - (1 - a) * high * e[switch],
                    ]
                    limits += [z.offset[j] - (1 - a) * low, a * z.offset[j]]
                else:
                    slope, intercept = line(node, j, low)
                    out.matrix[j], out.offset[j] = slope * z.matrix[j], slope * z.offset[j] + intercept
            values.append(out)
        else:
            values.append(_affine(net, i, values))
    final = values[net.output]
    lows = np.array([*lower.tolist(), *[-np.inf] * len(kinks), *[0.0] * len(kinks)])
    highs = np.array([*upper.tolist(), *[np.inf] * len(kinks), *[1.0] * len(kinks)])
    whole = np.array([0] * (inputs + len(kinks)) + [1] * len(kinks))
    given = [LinearConstraint(np.array(constraints), ub=np.array(limits))] if constraints else []
    found = []
    for row in rows:
        solved = milp(row @ final.matrix, constraints=given, integrality=whole, bounds=Bounds(lows, highs))
        assert solved.success
        found.append(solved.fun + row @ final.offset)
    return np.array(found)


def grafted(node: Activation, j: int) -> bool:
    return node.graft is not None and bool(node.graft.mask[j])


def line(node: Activation, j: int, low: float) -> tuple[float, float]:
    """Slope and intercept of a neuron that is grafted, or that stays on the side of zero where `low` is."""
    if node.graft is not None and bool(node.graft.mask[j]):
        return float(node.graft.gamma[j]), float(node.graft.omega[j])
    return (1.0, 0.0) if low >= 0 else (node.curve.slopes[0], 0.0)


def _affine(net: Network, i: int, values: list[Encoding]) -> Encoding:
    """Push each variable's column through an affine node."""
    node = net.nodes[i]
    columns = [
        torch.from_numpy(np.vstack([np.zeros((1, len(values[j].offset))), values[j].matrix.T])) for j in node.inputs
    ]
    constant = node.forward(*(torch.zeros_like(c[:1]) for c in columns))
    moved = node.forward(*columns) - constant
    offset = node.forward(*(torch.from_numpy(values[j].offset[None]) for j in node.inputs))
    return Encoding(moved[1:].numpy().T.copy(), offset[0].numpy())
