"""Small networks in two forms, an ONNX file and explicit matrices, and their exact answers.

A network is a list of activations whose inputs are affine in the input and in all activations before (an `Affine`);
least values come from a MILP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from scipy.optimize import Bounds, LinearConstraint, milp


@dataclass
class Affine:
    """matrix (n, V) and offset (n,): values in terms of x and of the activations so far; name: its ONNX tensor."""

    matrix: np.ndarray
    offset: np.ndarray
    name: str
    shape: tuple[int, ...]


@dataclass
class Stage:
    z: Affine
    left: float
    first: int  # its first variable


@dataclass
class Net:
    """A network under construction; weights come from `random` unless given.

    bump: which of the arrays of weights drawn has one number changed.
    """

    shape: tuple[int, ...]
    random: np.random.Generator
    dtype: Any = np.float32
    bump: int = -1
    stages: list[Stage] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    out: Affine | None = None

    def __post_init__(self) -> None:
        n = int(np.prod(self.shape))
        self.variables = n
        self.start = Affine(np.eye(n), np.zeros(n), "x", self.shape)

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def draw(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        drawn = self.random.normal(size=shape) * scale
        if self.bump == 0:
            drawn.flat[drawn.size // 2] += 0.5
        self.bump -= 1
        return np.asarray(drawn, self.dtype)

    def dense(
        self, x: Affine, outputs: int, weight: np.ndarray | None = None, bias: np.ndarray | None = None
    ) -> Affine:
        weight = self.draw(outputs, len(x.offset), scale=len(x.offset) ** -0.5) if weight is None else weight
        bias = self.draw(outputs, scale=0.3) if bias is None else bias
        name = self.node("Gemm", [x.name, self.constant(weight), self.constant(bias)], transB=1)
        w = weight.astype(np.float64)
        return Affine(w @ x.matrix, w @ x.offset + bias, name, (outputs,))

    def conv(self, x: Affine, channels: int, kernel: int = 2, stride: int = 1, pad: int = 0, groups: int = 1) -> Affine:
        inner = x.shape[0] // groups
        weight, bias = self.draw(channels, inner, kernel, kernel, scale=0.5), self.draw(channels, scale=0.2)
        settings = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "group": groups}
        name = self.node("Conv", [x.name, self.constant(weight), self.constant(bias)], **settings)
        _, height, width = x.shape
        rows, columns = ((side + 2 * pad - kernel) // stride + 1 for side in (height, width))
        dense = np.zeros((channels, rows, columns, *x.shape))
        for o, i, j, c, a, b in product(*map(range, (channels, rows, columns, inner, kernel, kernel))):
            y, w = i * stride + a - pad, j * stride + b - pad
            if 0 <= y < height and 0 <= w < width:
                dense[o, i, j, o // (channels // groups) * inner + c, y, w] += float(weight[o, c, a, b])
        flat = dense.reshape(channels * rows * columns, -1)
        offset = np.repeat(bias.astype(np.float64), rows * columns)
        return Affine(flat @ x.matrix, flat @ x.offset + offset, name, (channels, rows, columns))

    def flatten(self, x: Affine) -> Affine:
        return Affine(x.matrix, x.offset, self.node("Flatten", [x.name], axis=1), (len(x.offset),))

    def add(self, x: Affine, y: Affine, sign: int = 1) -> Affine:
        x, y = (self.widened(part) for part in (x, y))
        name = self.node("Add" if sign > 0 else "Sub", [x.name, y.name])
        return Affine(x.matrix + sign * y.matrix, x.offset + sign * y.offset, name, x.shape)

    def act(self, z: Affine, left: float = 0.0) -> Affine:
        left = float(np.float32(left))
        name = self.node("LeakyRelu", [z.name], alpha=left) if left else self.node("Relu", [z.name])
        n, z = len(z.offset), self.widened(z)
        self.stages.append(Stage(z, left, self.variables))
        matrix = np.zeros((n, self.variables + n))
        matrix[:, self.variables :] = np.eye(n)
        self.variables += n
        return Affine(matrix, np.zeros(n), name, z.shape)

    def graft(self, z: Affine, share: float = 0.5) -> Affine:
        """h = relu(n z + (n - 1)) + (a z + b), as lipgraft's exporter writes it."""
        mask = self.random.random(z.shape) < share
        n, one = (~mask).astype(self.dtype), self.dtype(1)
        a, b = (np.where(mask, self.draw(*z.shape), 0).astype(self.dtype) for _ in range(2))
        sees = self.node("Add", [self.node("Mul", [z.name, self.constant(n)]), self.constant(n - one)])
        scale, shift = n.reshape(-1).astype(float), (n - one).reshape(-1).astype(float)
        kept = self.act(Affine(z.matrix * scale[:, None], z.offset * scale + shift, sees, z.shape))
        line = self.node("Add", [self.node("Mul", [z.name, self.constant(a)]), self.constant(b)])
        z, slope = self.widened(z), a.reshape(-1).astype(float)
        lines = Affine(z.matrix * slope[:, None], z.offset * slope + b.reshape(-1), line, z.shape)
        return self.add(kept, lines)

    def widened(self, x: Affine) -> Affine:
        """In terms of all variables there are by now."""
        more = np.zeros((len(x.offset), self.variables - x.matrix.shape[1]))
        return Affine(np.hstack([x.matrix, more]), x.offset, x.name, x.shape)

    def finish(self, out: Affine) -> Net:
        self.out = self.widened(out)
        for stage in self.stages:
            stage.z = self.widened(stage.z)
        return self

    def onnx(self) -> bytes:
        assert self.out is not None
        kind = TensorProto.FLOAT if self.dtype == np.float32 else TensorProto.DOUBLE
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", kind, ["batch", *self.shape])],
            [helper.make_tensor_value_info(self.out.name, kind, ["batch", *self.out.shape])],
            self.constants,
        )
        opset = [helper.make_opsetid("", 13)]
        data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
        return data

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Outputs in double precision. x: (B, n) -> (B, outputs)."""
        assert self.out is not None
        values = np.zeros((len(x), self.variables))
        values[:, : x.shape[1]] = x
        for stage in self.stages:
            z = values @ stage.z.matrix.T + stage.z.offset
            values[:, stage.first : stage.first + z.shape[1]] = np.maximum(z, stage.left * z)
        return values @ self.out.matrix.T + self.out.offset


FAMILIES = ("dense", "deep", "conv", "grouped", "graft", "leaky", "residual", "double")


def network(family: str, seed: int, bump: int = -1) -> Net:
    """A small random network with three outputs."""
    net = Net((3,), np.random.default_rng(seed), np.float64 if family == "double" else np.float32, bump)
    if family in ("conv", "grouped"):
        net = Net((2, 3, 3), net.random, bump=bump)
        groups = 2 if family == "grouped" else 1
        h = net.act(net.conv(net.start, 2, stride=1 if groups == 2 else 2, pad=1, groups=groups))
        h = net.act(net.conv(h, 2))
        return net.finish(net.dense(net.flatten(h), 3))
    left = 0.1 if family == "leaky" else 0.0
    h = net.dense(net.start, 5)
    h = net.graft(h) if family == "graft" else net.act(h, left)
    z = net.dense(h, 5)
    if family == "residual":
        z = net.add(z, h)
    h = net.graft(z) if family == "graft" else net.act(z, left)
    if family == "residual":
        h = net.add(h, z, -1)
    if family == "deep":
        h = net.act(net.dense(net.act(net.dense(h, 4)), 4))
    return net.finish(net.dense(h, 3))


def least(net: Net, lower: np.ndarray, upper: np.ndarray, row: np.ndarray) -> float:
    """The least value of row . outputs over the box, by a mixed-integer program."""
    assert net.out is not None
    x, total = len(lower), net.variables
    lows, highs = np.full(total, -np.inf), np.full(total, np.inf)
    lows[:x], highs[:x] = lower, upper
    values_low, values_high = lows.copy(), highs.copy()
    constraints, limits, switches = [], [], 0
    plans = []
    for stage in net.stages:
        w, n = stage.z.matrix, len(stage.z.offset)
        positive, negative = np.maximum(w, 0), np.minimum(w, 0)
        known = slice(0, stage.first)
        low = positive[:, known] @ values_low[known] + negative[:, known] @ values_high[known] + stage.z.offset
        high = positive[:, known] @ values_high[known] + negative[:, known] @ values_low[known] + stage.z.offset
        span = slice(stage.first, stage.first + n)
        values_low[span], values_high[span] = np.maximum(low, stage.left * low), np.maximum(high, stage.left * high)
        plans.append((stage, low, high, switches))
        switches += n
    for stage, low, high, first in plans:
        for j in range(len(low)):
            z, c, a = np.zeros(total + switches), stage.z.offset[j], stage.left
            z[:total] = stage.z.matrix[j]
            h, s = np.zeros(total + switches), np.zeros(total + switches)
            h[stage.first + j], s[total + first + j] = 1.0, 1.0
            bottom, top = min(low[j], 0.0) - 1.0, max(high[j], 0.0) + 1.0
            constraints += [z - h, a * z - h, h - z - (1 - a) * bottom * s, h - a * z - (1 - a) * top * s]
            limits += [-c, -a * c, c - (1 - a) * bottom, a * c]
    whole = np.array([0] * total + [1] * switches)
    ends = Bounds(np.append(lows, np.zeros(switches)), np.append(highs, np.ones(switches)))
    objective = np.append(row @ net.out.matrix, np.zeros(switches))
    solved = milp(
        objective, constraints=LinearConstraint(np.array(constraints), ub=limits), integrality=whole, bounds=ends
    )
    assert solved.success, solved.message
    return float(solved.fun + row @ net.out.offset)
