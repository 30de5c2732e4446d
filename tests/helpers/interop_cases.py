"""Small ONNX files with the operators of the verification competition's networks, written node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Graph:
    """An ONNX file under construction. Constants are drawn at random, always the same."""

    def __init__(self, shape: Sequence[int | str], *, opset: int = 13, dtype: type = np.float32) -> None:
        self.shape, self.opset, self.dtype = shape, opset, dtype
        self.rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.last = "x"

    def number(self, value: Any, name: str | None = None) -> str:
        """A constant: an array as it is."""
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, value: Any) -> str:
        """A constant from a Constant node."""
        name = f"constant{len(self.nodes)}"
        attribute = numpy_helper.from_array(np.asarray(value))
        self.nodes.append(helper.make_node("Constant", [], [name], f"{name}_node", value=attribute))
        return name

    def random(self, *shape: int, scale: float = 0.5) -> str:
        return self.number((scale * self.rng.standard_normal(shape)).astype(self.dtype))

    def add(self, kind: str, *inputs: str, name: str | None = None, outputs: int = 1, **attributes: Any) -> str:
        """A node; without inputs it reads the last one's result."""
        name = name or f"{kind.lower()}{len(self.nodes)}"
        results = [f"{name}_out", *(f"{name}_extra{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs) or [self.last], results, name, **attributes))
        self.last = results[0]
        return self.last

    def save(self, path: Path, output_shape: Sequence[int | str]) -> Path:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self.nodes,
            "case",
            [helper.make_tensor_value_info("x", kind, self.shape)],
            [helper.make_tensor_value_info(self.last, kind, output_shape)],
            self.constants,
        )
        imports = [helper.make_opsetid("", self.opset)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=7 if self.opset < 15 else 10), path)
        return path


def vnnlib(lower: Sequence[float], upper: Sequence[float], outputs: int, *formulas: str) -> str:
    """A box, and formulas that all hold where the property is violated."""
    lines = [f"(declare-const X_{i} Real)" for i in range(len(lower))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        lines += [f"(assert (>= X_{i} {low!r}))", f"(assert (<= X_{i} {high!r}))"]
    return "\n".join([*lines, *(f"(assert {formula})" for formula in formulas), ""])


def two_sides(path: Path, inputs: int) -> Path:
    """Y_0 = relu(s), Y_1 = relu(-s) with s the mean of the inputs: both cannot be positive."""
    g = Graph([1, inputs])
    weight = np.full((inputs, 2), 1 / inputs, np.float32) * np.array([1, -1], np.float32)
    g.add("MatMul", g.last, g.number(weight))
    g.add("Relu")
    return g.save(path, [1, 2])


Case = Callable[[Path, int], Path]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


@case
def fully_connected_gemm(path: Path, opset: int) -> Path:
    """(1, 12, 1) inputs, Flatten, Gemm with and without transposition."""
    g = Graph([1, 12, 1], opset=opset)
    g.add("Flatten", axis=1)
    g.add("Gemm", g.last, g.random(8, 12), g.random(8), transB=1)
    g.add("Relu")
    g.add("Gemm", g.last, g.random(8, 7), g.random(1, 7), alpha=0.5, beta=2.0)
    g.add("Relu")
    g.add("Gemm", g.last, g.random(7, 4), g.random(4))
    return g.save(path, [1, 4])


@case
def fully_connected_without_batch_axis(path: Path, opset: int) -> Path:
    """(12, 1) inputs and products W x + b with column vectors."""
    g = Graph([12, 1], opset=opset)
    g.add("MatMul", g.random(9, 12), g.last)
    g.add("Add", g.last, g.random(9, 1))
    g.add("Relu")
    g.add("Gemm", g.random(6, 9), g.last, g.random(6, 1))
    g.add("Relu")
    g.add("MatMul", g.random(4, 6), g.last)
    g.add("Add", g.random(4, 1), g.last)
    return g.save(path, [4, 1])


@case
def collision_avoidance(path: Path, opset: int) -> Path:
    """(1, 1, 1, 5) inputs, a subtracted constant, MatMul + Add."""
    g = Graph([1, 1, 1, 5], opset=opset)
    g.add("Sub", g.last, g.random(1, 1, 1, 5))
    g.add("Flatten", axis=1)
    for n, m in ((5, 8), (8, 8)):
        g.add("MatMul", g.last, g.random(n, m))
        g.add("Add", g.last, g.random(m))
        g.add("Relu")
    g.add("MatMul", g.last, g.random(8, 5))
    g.add("Add", g.last, g.random(5))
    return g.save(path, [1, 5])


@case
def convolutions(path: Path, opset: int) -> Path:
    """Normalised images, strided convolutions, Reshape, Gemm; an open batch axis."""
    g = Graph(["batch", 3, 6, 6], opset=opset)
    g.add("Sub", g.last, g.random(1, 3, 1, 1))
    g.add("Div", g.last, g.number(np.array([0.3, 0.4, 0.5], np.float32).reshape(3, 1, 1)))
    g.add("Conv", g.last, g.random(4, 3, 4, 4), g.random(4), strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[4, 4])
    g.add("Relu")
    g.add("Conv", g.last, g.random(6, 2, 3, 3), strides=[1, 1], pads=[0, 1, 1, 1], group=2)
    g.add("Relu")
    g.add("Reshape", g.last, g.number(np.array([-1, 36], np.int64)))
    g.add("Gemm", g.last, g.random(6, 36), g.random(6), transB=1)
    return g.save(path, ["batch", 6])


@case
def residual_blocks(path: Path, opset: int) -> Path:
    """Conv + BatchNormalization, a shortcut, Add, pooling."""
    g = Graph([1, 2, 6, 6], opset=opset)

    def block(x: str, channels: int, out: int, kernel: int, **attributes: Any) -> str:
        g.add("Conv", x, g.random(out, channels, kernel, kernel), **attributes)
        spread = g.number(np.abs(g.rng.standard_normal(out)).astype(np.float32) + 0.1)
        return g.add("BatchNormalization", g.last, g.random(out), g.random(out), g.random(out), spread, epsilon=1e-3)

    start = g.last
    block(start, 2, 4, 3, strides=[2, 2], pads=[1, 1, 1, 1])
    g.add("Relu")
    deep = block(g.last, 4, 4, 3, pads=[1, 1, 1, 1])
    short = block(start, 2, 4, 1, strides=[2, 2])
    g.add("Add", deep, short)
    g.add("Relu")
    g.add("GlobalAveragePool")
    g.add("Flatten")
    g.add("Gemm", g.last, g.random(3, 4), g.random(3), transB=1)
    return g.save(path, [1, 3])


@case
def channels_last_of_one_channel(path: Path, opset: int) -> Path:
    """(1, 4, 5, 1) images whose transposition only moves an axis of size 1."""
    g = Graph([1, 4, 5, 1], opset=opset)
    g.add("Transpose", perm=[0, 3, 1, 2])
    g.add("Conv", g.last, g.random(3, 1, 2, 2), g.random(3))
    g.add("Relu")
    g.add("Flatten")
    g.add("MatMul", g.last, g.random(36, 3))
    return g.save(path, [1, 3])


@case
def shape_arithmetic(path: Path, opset: int) -> Path:
    """x.view(x.size(0), -1), as exporters write it."""
    g = Graph(["n", 2, 3, 3], opset=opset)
    images = g.add("Relu")
    g.add("Shape", images)
    g.add("Gather", g.last, g.number(np.array(0, np.int64)), axis=0)
    if opset < 13:
        g.add("Unsqueeze", g.last, axes=[0])
    else:
        g.add("Unsqueeze", g.last, g.number(np.array([0], np.int64)))
    g.add("Concat", g.last, g.number(np.array([-1], np.int64)), axis=0)
    g.add("Reshape", images, g.last)
    g.add("Gemm", g.last, g.random(18, 4), g.random(4))
    return g.save(path, ["n", 4])


@case
def small_operators(path: Path, opset: int) -> Path:
    """Constant, Identity, Dropout, Neg, Mul, Cast, Squeeze, Unsqueeze, c - x, x - y, scalars."""
    g = Graph([1, 6], opset=opset)
    weight = numpy_helper.from_array(g.rng.standard_normal((6, 6)).astype(np.float32))
    g.nodes.append(helper.make_node("Constant", [], ["weight"], "constant", value=weight))
    g.add("MatMul", g.last, "weight")
    g.add("Identity")
    g.add("Dropout", outputs=2)
    axes = {"axes": [2]} if opset < 13 else {}
    more = [] if opset < 13 else [g.number(np.array([2], np.int64))]
    g.add("Unsqueeze", g.last, *more, **axes)
    g.add("Squeeze", g.last, *more, **axes)
    one = g.add("Neg")
    g.add("Mul", g.number(np.array(0.7, np.float32)), one)
    g.add("Cast", to=1)
    two = g.add("Relu")
    g.add("Sub", g.random(6), g.last)
    g.add("Sub", g.last, one)
    g.add("Add", two, g.last)
    g.add("Div", g.last, g.random(1, 6, scale=2.0))
    return g.save(path, [1, 6])


@case
def paddings_and_pools(path: Path, opset: int) -> Path:
    """Pad, asymmetric and SAME padding, both kinds of average pooling."""
    g = Graph([1, 2, 7, 6], opset=opset)
    sides = [0, 0, 1, 0, 0, 0, 2, 1]
    if opset < 11:
        g.add("Pad", pads=sides, mode="constant")
    else:
        g.add("Pad", g.last, g.number(np.array(sides, np.int64)), mode="constant")
    g.add("Conv", g.last, g.random(3, 2, 4, 2), strides=[2, 2], auto_pad="SAME_UPPER")
    g.add("Relu")
    g.add("Conv", g.last, g.random(3, 3, 2, 2), auto_pad="SAME_LOWER", dilations=[1, 1])
    g.add("AveragePool", kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1])
    g.add("Relu")
    g.add("AveragePool", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 1, 1, 0], count_include_pad=1)
    g.add("Flatten")
    g.add("MatMul", g.last, g.random(36, 3))
    return g.save(path, [1, 3])


@case
def sequence_convolution(path: Path, opset: int) -> Path:
    """A convolution in one dimension, BatchNorm on vectors, the mean over an image."""
    g = Graph([1, 2, 9], opset=opset)
    g.add("Conv", g.last, g.random(3, 2, 3), g.random(3), strides=[2], pads=[1, 0])
    g.add("Relu")
    g.add("Reshape", g.last, g.number(np.array([1, 3, 2, 2], np.int64)))
    if opset < 18:
        g.add("ReduceMean", axes=[2, 3], keepdims=0)
    else:
        g.add("ReduceMean", g.last, g.number(np.array([-1, -2], np.int64)), keepdims=0)
    g.add("BatchNormalization", g.last, g.random(3), g.random(3), g.random(3), g.number(np.ones(3, np.float32)))
    return g.save(path, [1, 3])


@case
def smooth_activations(path: Path, opset: int) -> Path:
    """LeakyRelu, Sigmoid, Tanh."""
    g = Graph([1, 5], opset=opset)
    for kind, attributes in (("LeakyRelu", {"alpha": 0.2}), ("Sigmoid", {}), ("Tanh", {}), ("LeakyRelu", {})):
        g.add("Gemm", g.last, g.random(5, 5), g.random(5))
        g.add(kind, **attributes)
    return g.save(path, [1, 5])


@case
def moved_numbers(path: Path, opset: int) -> Path:
    """Channels last, Slice, Gather, Split, Concat with a constant, Expand, Tile."""
    g = Graph([1, 4, 5, 2], opset=opset)

    def whole(*numbers: int) -> str:
        return g.number(np.array(numbers, np.int64))

    g.add("Transpose", perm=[0, 3, 1, 2])
    image = g.add("Conv", g.last, g.random(4, 2, 3, 3), g.random(4), pads=[1, 1, 1, 1])
    g.add("Relu")
    if opset < 10:
        cut = g.add("Slice", g.last, axes=[1, 3], starts=[1, -4], ends=[3, 100])
    else:
        cut = g.add("Slice", g.last, whole(1, -4), whole(3, 100), whole(1, 3))
    picked = g.add("Gather", image, g.number(np.array([[2, 0], [-1, 2]], np.int64)), axis=1)
    picked = g.add("Reshape", picked, whole(1, 4, 4, 5))
    parts = {"split": [1, 3]} if opset < 13 else {}
    first = g.add("Split", picked, *([] if opset < 13 else [whole(1, 3)]), axis=1, outputs=2, **parts)
    second = g.nodes[-1].output[1]
    wide = g.add("Expand", g.add("GlobalAveragePool", image), whole(1, 4, 4, 1))
    g.add("Tile", wide, whole(1, 1, 1, 5))
    g.add("Concat", g.last, g.random(1, 2, 4, 5), second, first, axis=1)
    flat = g.add("Flatten")
    g.add("Concat", flat, g.add("Flatten", cut), axis=-1)
    g.add("Gemm", g.last, g.random(232, 3, scale=0.2), g.random(3))
    return g.save(path, [1, 3])


@case
def rows_of_vectors(path: Path, opset: int) -> Path:
    """(1, 3, 4) inputs: products with every row or column, sums over axes, results that repeat each other."""
    g = Graph([1, 3, 4], opset=opset)

    def total(kind: str, x: str, axis: int, keepdims: int) -> str:
        if opset < (13 if kind == "ReduceSum" else 18):
            return g.add(kind, x, axes=[axis], keepdims=keepdims)
        return g.add(kind, x, g.number(np.array([axis], np.int64)), keepdims=keepdims)

    g.add("MatMul", g.last, g.random(4, 5))
    g.add("Add", g.last, g.random(5))
    rows = g.add("Relu")
    g.add("MatMul", g.random(2, 3), rows)
    columns = g.add("Relu")
    together = g.add("Add", total("ReduceSum", columns, 1, 1), rows)
    g.add("Sub", together, total("ReduceMean", rows, 2, 1))
    total("ReduceSum", g.last, -2, 0)
    return g.save(path, [1, 5])


@case
def limits_and_images_that_grow(path: Path, opset: int) -> Path:
    """Max, Min, Abs, Clip on either side, ConvTranspose, zero channels, nearest neighbours."""
    g = Graph([1, 2, 3, 3], opset=opset)
    g.add("ConvTranspose", g.last, g.random(2, 3, 2, 2), g.random(3), strides=[2, 2])
    x = g.add("Abs")
    if opset < 11:
        g.add("Clip", min=0.1)
        y = g.add("Clip", max=0.6)
        g.add("Pad", pads=[0, 1, 0, 0, 0, 0, 0, 0])
    else:
        g.add("Clip", g.last, g.number(np.float32(0.1)))
        y = g.add("Clip", g.last, "", g.number(np.float32(0.6)))
        g.add("Pad", g.last, g.number(np.array([0, 1, 0, 0, 0, 0, 0, 0])))
    g.add("Slice", g.last, axes=[1], starts=[0], ends=[3]) if opset < 10 else g.add(
        "Slice", g.last, *(g.number(np.array([n])) for n in (0, 3, 1))
    )
    g.add("Max", g.last, x, g.random(3, 1, 1))
    g.add("Min", y, g.last)
    scales = g.number(np.array([1, 1, 2, 3], np.float32))
    if opset < 10:
        g.add("Upsample", g.last, scales, mode="nearest")
    else:
        nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        g.add("Resize", g.last, "", scales, mode="nearest", **nearest)
    g.add("Flatten")
    g.add("MatMul", g.last, g.random(648, 3, scale=0.1))
    return g.save(path, [1, 3])


@case
def products_of_results(path: Path, opset: int) -> Path:
    """A quadratic form, a product of different factors that broadcasts, shares of a sum, powers, a mask."""
    g = Graph([1, 6], opset=opset)
    x = g.last
    form = g.add("Mul", x, g.add("MatMul", x, g.random(6, 6)))
    hidden = g.add("Relu", g.add("Add", g.add("MatMul", x, g.random(6, 4)), g.number(np.full(4, 2.0, np.float32))))
    cube = g.add("Pow", hidden, g.number(np.float32(3.0)))
    total = g.add("MatMul", cube, g.number(np.ones((4, 1), np.float32)))
    shares = g.add("Div", cube, g.add("Add", total, g.number(np.float32(1.0))))
    square = g.add("Mul", hidden, hidden)
    inverse = g.add("Div", g.number(np.float32(2.0)), g.add("Add", square, g.number(np.float32(1.0))))
    inverse = g.add("Add", inverse, g.add("Reciprocal", g.add("Add", hidden, g.number(np.float32(3.0)))))
    one = g.add("MatMul", x, g.random(6, 1))
    g.add("Concat", form, shares, g.add("Mul", inverse, one), axis=1)
    g.add("Gemm", g.last, g.random(14, 5), g.random(5))
    g.add("Relu")
    g.add("Gemm", g.last, g.random(5, 3), g.random(3))
    return g.save(path, [1, 3])


@case
def waves_and_steps(path: Path, opset: int) -> Path:
    """Sines, cosines and whole numbers, and what they are multiplied with."""
    g = Graph([1, 6], opset=opset)
    x = g.last
    angle = g.add("MatMul", x, g.random(6, 4))
    wave = g.add("Mul", g.add("Sin", angle), g.add("Cos", g.add("MatMul", x, g.random(6, 4))))
    turns = g.add("Floor", g.add("MatMul", x, g.random(6, 4, scale=2.0)))
    g.add("Concat", wave, turns, axis=1)
    g.add("Gemm", g.last, g.random(8, 5), g.random(5))
    g.add("Relu")
    g.add("Gemm", g.last, g.random(5, 3), g.random(3))
    return g.save(path, [1, 3])
