"""Every ONNX operator that is read, alone: what it computes, its bounds, and the forms of it that are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from interop_cases import Graph, vnnlib
from lipgraft import Box, bound
from lipgraft.errors import UnsupportedOperationError
from lipgraft.interop import OnnxRuntime, load_onnx, verify_vnnlib
from lipgraft.interop.importer import OPERATORS

IMAGE = (1, 4, 4, 6)
ROW = (1, 6)
Write = Callable[[Graph, str], object]


@dataclass(frozen=True)
class Operator:
    """taken, refused: add the operator after a tensor of this shape; the refused node is called `culprit`.

    refused is None where every form that onnxruntime runs is read.
    """

    taken: Write
    refused: Write | None = None
    shape: tuple[int, ...] = ROW
    opset: int = 13


def whole(g: Graph, *numbers: int) -> str:
    return g.number(np.array(numbers, np.int64))


def real(g: Graph, *numbers: float) -> str:
    return g.number(np.array(numbers, np.float32))


def alone(kind: str, **attributes: object) -> Write:
    """The operator of one tensor."""
    return lambda g, z: g.add(kind, z, name="culprit", **attributes)


def with_result(kind: str) -> Write:
    """The operator of a tensor and another result, which is repeated."""
    return lambda g, z: g.add(kind, z, g.add("MatMul", z, g.random(6, 1)))


def divided(g: Graph, z: str) -> None:
    """By what is never zero."""
    g.add("Div", z, g.add("Add", g.add("Abs", z), real(g, 1.0)))


def shifted(kind: str) -> Write:
    """The operator of what is above 1."""
    return lambda g, z: g.add(kind, g.add("Add", g.add("Abs", z), real(g, 1.0)))


def convolution(kind: str, weights: tuple[int, ...], **attributes: object) -> Write:
    return lambda g, z: g.add(kind, z, g.random(*weights), name="culprit", **attributes)


def batch_norm(**attributes: object) -> Write:
    def write(g: Graph, z: str) -> None:
        spread = g.number(np.array([0.5, 1.0, 1.5, 2.0], np.float32))
        outputs = 3 if attributes else 1
        g.add("BatchNormalization", z, *(g.random(4) for _ in range(3)), spread, name="culprit", outputs=outputs,
              **attributes)  # fmt: skip

    return write


def dropout(g: Graph, z: str) -> None:
    g.add("Dropout", z, g.number(np.float32(0.5)), g.number(np.array(True)), name="culprit")


def cast_to_whole_numbers(g: Graph, z: str) -> None:
    g.add("Cast", z, name="culprit", to=6)
    g.add("Cast", to=1)


def resized(mode: str) -> Write:
    def write(g: Graph, z: str) -> None:
        g.add("Resize", z, "", real(g, 1, 1, 2, 3), name="culprit", mode=mode, nearest_mode="floor",
              coordinate_transformation_mode="asymmetric")  # fmt: skip

    return write


def upsampled(mode: str) -> Write:
    return lambda g, z: g.add("Upsample", z, real(g, 1, 1, 2, 3), name="culprit", mode=mode)


def softmax_inside(kind: str) -> Write:
    return lambda g, z: g.add("Relu", g.add(kind, z, name="culprit", axis=-1))


def split(*sizes: int) -> Write:
    def write(g: Graph, z: str) -> None:
        g.add("Split", z, whole(g, *sizes), name="culprit", axis=1, outputs=2)
        g.add("Concat", g.nodes[-1].output[1], g.nodes[-1].output[0], axis=1)

    return write


TABLE: dict[str, Operator] = {
    # Activations.
    "Relu": Operator(alone("Relu")),
    "LeakyRelu": Operator(alone("LeakyRelu", alpha=0.2), alone("LeakyRelu", alpha=1.5)),
    "Sigmoid": Operator(alone("Sigmoid")),
    "Tanh": Operator(alone("Tanh")),
    "Softplus": Operator(alone("Softplus")),
    "Gelu": Operator(alone("Gelu", approximate="tanh"), opset=20),
    "Clip": Operator(lambda g, z: g.add("Clip", z, g.number(np.float32(-0.3)), g.number(np.float32(0.4))),
                     lambda g, z: g.add("Clip", z, g.add("ReduceSum", z, keepdims=0), name="culprit")),
    "Abs": Operator(alone("Abs")),
    "Max": Operator(lambda g, z: g.add("Max", z, g.random(6), g.add("MatMul", z, g.random(6, 1)))),
    "Min": Operator(lambda g, z: g.add("Min", g.add("MatMul", z, g.random(6, 1)), z, g.random(6))),
    # Affine.
    "Add": Operator(with_result("Add")),
    "Sub": Operator(with_result("Sub")),
    "Neg": Operator(alone("Neg")),
    "Gemm": Operator(lambda g, z: g.add("Gemm", z, g.random(3, 6), g.random(3), transB=1, alpha=0.5),
                     lambda g, z: g.add("Gemm", z, z, name="culprit", transB=1)),
    "MatMul": Operator(lambda g, z: g.add("MatMul", z, g.random(6, 3)),
                       lambda g, z: g.add("MatMul", z, g.add("Transpose", z, perm=[1, 0]), name="culprit")),
    "Conv": Operator(convolution("Conv", (4, 2, 2, 3), group=2, pads=[1, 0, 0, 2], dilations=[2, 1]),
                     lambda g, z: g.add("Conv", g.add("Reshape", z, whole(g, 1, 1, 4, 4, 6)), g.random(1, 1, 2, 2, 2),
                                        name="culprit"), IMAGE),
    "ConvTranspose": Operator(convolution("ConvTranspose", (4, 3, 2, 2), strides=[2, 1], pads=[1, 0, 1, 0]),
                              convolution("ConvTranspose", (4, 3, 2, 2), auto_pad="SAME_UPPER"), IMAGE),
    "BatchNormalization": Operator(batch_norm(), batch_norm(training_mode=1), IMAGE, opset=14),
    "AveragePool": Operator(alone("AveragePool", kernel_shape=[2, 3], strides=[1, 2], pads=[1, 1, 1, 1]),
                            alone("AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1]), IMAGE),
    "GlobalAveragePool": Operator(alone("GlobalAveragePool"),
                                  lambda g, z: g.add("GlobalAveragePool", g.add("Reshape", z, whole(g, 1, 4, 24)),
                                                     name="culprit"), IMAGE),
    "ReduceSum": Operator(lambda g, z: g.add("ReduceSum", z, whole(g, 1, -1), keepdims=0), shape=IMAGE),
    "ReduceMean": Operator(alone("ReduceMean", axes=[1, 3]), shape=IMAGE),
    "Pad": Operator(lambda g, z: g.add("Pad", z, whole(g, 0, 1, 0, 2, 0, 0, 1, 0)),
                    lambda g, z: g.add("Pad", z, whole(g, 0, 0, 1, 1, 0, 0, 1, 1), name="culprit", mode="reflect"),
                    IMAGE),
    # Windows, products and waves.
    "MaxPool": Operator(alone("MaxPool", kernel_shape=[2, 3], strides=[2, 2], pads=[0, 1, 0, 1]),
                        alone("MaxPool", kernel_shape=[2, 2], pads=[0, 0, 1, 1]), IMAGE),
    "Mul": Operator(with_result("Mul")),
    "Div": Operator(divided),
    "Reciprocal": Operator(shifted("Reciprocal")),
    "Pow": Operator(lambda g, z: g.add("Pow", z, real(g, 3.0)), lambda g, z: g.add("Pow", z, z, name="culprit")),
    "Sin": Operator(alone("Sin")),
    "Cos": Operator(alone("Cos")),
    "Floor": Operator(lambda g, z: g.add("Floor", g.add("Mul", z, real(g, 3.0)))),
    "Sign": Operator(alone("Sign")),
    # Numbers that move. Those that leave none behind are refused.
    "Transpose": Operator(alone("Transpose", perm=[3, 0, 2, 1]), shape=IMAGE),
    "Slice": Operator(lambda g, z: g.add("Slice", z, whole(g, 3, -1), whole(g, 1, 0), whole(g, 1, 3), whole(g, -1, -2)),
                      lambda g, z: g.add("Slice", z, whole(g, 2), whole(g, 2), whole(g, 1), name="culprit"), IMAGE),
    "Gather": Operator(lambda g, z: g.add("Gather", z, g.number(np.array([[2, 0], [-1, 2]])), axis=1),
                       lambda g, z: g.add("Gather", z, g.number(np.zeros((0,), np.int64)), name="culprit", axis=1)),
    "GatherElements": Operator(
        lambda g, z: g.add("GatherElements", z, g.number(np.array([[5, 0, -2]])), axis=1),
        lambda g, z: g.add("GatherElements", z, g.number(np.zeros((1, 0), np.int64)), name="culprit", axis=1)),
    "GatherND": Operator(
        lambda g, z: g.add("GatherND", z, g.number(np.array([[0, 3, 1], [0, 0, 2]]))),
        lambda g, z: g.add("GatherND", z, g.number(np.zeros((0, 3), np.int64)), name="culprit"), IMAGE),
    "Split": Operator(split(2, 4), split(0, 6)),
    "Concat": Operator(lambda g, z: g.add("Concat", z, g.random(1, 2), g.add("Neg", z), axis=-1)),
    "Expand": Operator(lambda g, z: g.add("Expand", z, whole(g, 2, 3, 6)),
                       lambda g, z: g.add("Expand", z, whole(g, 0, 1, 6), name="culprit")),
    "Tile": Operator(lambda g, z: g.add("Tile", z, whole(g, 2, 3)),
                     lambda g, z: g.add("Tile", z, whole(g, 1, 0), name="culprit")),
    "DepthToSpace": Operator(alone("DepthToSpace", blocksize=2, mode="CRD"), shape=IMAGE),
    "SpaceToDepth": Operator(alone("SpaceToDepth", blocksize=2), shape=IMAGE),
    "Resize": Operator(resized("nearest"), resized("linear"), IMAGE),
    "Upsample": Operator(upsampled("nearest"), upsampled("linear"), IMAGE, opset=9),
    # Shapes, and what changes nothing.
    "Flatten": Operator(alone("Flatten", axis=2), shape=IMAGE),
    "Reshape": Operator(lambda g, z: g.add("Reshape", z, whole(g, 0, -1, 8)), shape=IMAGE),
    "Squeeze": Operator(lambda g, z: g.add("Squeeze", z, whole(g, 0))),
    "Unsqueeze": Operator(lambda g, z: g.add("Unsqueeze", z, whole(g, -1, 0))),
    "Shape": Operator(lambda g, z: g.add("Reshape", z, g.add("Shape", z)), shape=IMAGE),
    "Identity": Operator(alone("Identity")),
    "Dropout": Operator(alone("Dropout"), dropout),
    "Cast": Operator(alone("Cast", to=1), cast_to_whole_numbers),
}  # fmt: skip
AT_THE_END = ("Softmax", "LogSoftmax")
"""Left out where a property only compares outputs (test_interop_vnnlib_2.py), and refused anywhere else."""
REFUSED = {
    **{name: row for name, row in TABLE.items() if row.refused is not None},
    **{name: Operator(alone(name), softmax_inside(name)) for name in AT_THE_END},
}


def saved(path: Path, row: Operator, write: Write) -> Path:
    """LeakyRelu(3 x - 1), whose kinks lie inside of the boxes, and the operator."""
    g = Graph(row.shape, opset=row.opset)
    z = g.add("LeakyRelu", g.add("Sub", g.add("Mul", g.last, real(g, 3.0)), real(g, 1.0)), alpha=0.3)
    write(g, z)
    return g.save(path, None)  # type: ignore[arg-type]


def test_every_operator_that_is_read_has_a_row() -> None:
    """Swish came with opset 24, which onnxruntime does not run; test_interop_formulas.py has what is read as it."""
    assert {*TABLE, *AT_THE_END, "Swish"} == set(OPERATORS)


@pytest.mark.parametrize("name", TABLE)
def test_an_operator_computes_what_onnxruntime_computes_and_its_bounds_hold(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx", TABLE[name], TABLE[name].taken)
    network, runtime = load_onnx(path), OnnxRuntime(path)
    assert name in {node.op_type for node in runtime.file.model.graph.node}
    generator = torch.Generator().manual_seed(1)
    box = Box.linf(torch.rand(1, *network.input_shape, generator=generator), 0.1)
    share = torch.rand(150, *network.input_shape, generator=generator)
    share[::2] = share[::2].round()  # corners
    x = box.lower + share * (box.upper - box.lower)
    y = runtime(x)
    with torch.no_grad():
        torch.testing.assert_close(network(x), y, atol=1e-5, rtol=1e-5)
    assert y.std() > 0
    for method in ("ibp", "crown"):
        bounds = bound(network, box, method)
        assert bool(((y >= bounds.lower - 1e-5) & (y <= bounds.upper + 1e-5)).all())
        assert bool((bounds.upper - bounds.lower < 20).all())


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_that_is_not_supported_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    row = REFUSED[name]
    assert row.refused is not None
    path = saved(tmp_path / "net.onnx", row, row.refused)
    OnnxRuntime(path)  # the file is a good one
    with pytest.raises(UnsupportedOperationError) as raised:
        load_onnx(path)
    words = str(raised.value)
    assert words.startswith(f"{path}: the ONNX operator {name} of node 'culprit' is not supported: ")
    assert words.endswith(".")
    assert "\n" not in words


def test_places_that_are_not_there_are_refused_in_one_sentence(tmp_path: Path) -> None:
    g = Graph(ROW)
    g.add("Gather", g.last, whole(g, 9), name="culprit", axis=1)
    with pytest.raises(UnsupportedOperationError, match=r"Gather of node 'culprit' is not supported: .*9.*\.$"):
        load_onnx(g.save(tmp_path / "net.onnx", None))  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["sizes", "scales"])
@pytest.mark.parametrize("axes", [[2, 3], [-1, 2]])
def test_resize_of_some_axes_leaves_the_others(axes: list[int], by: str, tmp_path: Path) -> None:
    g = Graph([1, 2, 2, 3], opset=18)
    factors = [3, 2] if axes[0] == 2 else [2, 3]
    old = [(1, 2, 2, 3)[axis] for axis in axes]
    sizes = whole(g, *(n * m for n, m in zip(factors, old, strict=True)))
    inputs = ["", "", sizes] if by == "sizes" else ["", real(g, *factors)]
    g.add("Resize", g.last, *inputs, axes=axes, mode="nearest", nearest_mode="floor",
          coordinate_transformation_mode="asymmetric")  # fmt: skip
    path = g.save(tmp_path / "net.onnx", None)  # type: ignore[arg-type]
    x = torch.rand(1, 2, 2, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(load_onnx(path)(x), OnnxRuntime(path)(x).reshape(1, -1))


def test_batch_norm_of_every_place_is_refused(tmp_path: Path) -> None:
    """`spatial=0`, which opset 9 gave up."""
    g = Graph(IMAGE, opset=7)
    spread = g.number(np.ones((4, 4, 6), np.float32))
    g.add("BatchNormalization", g.last, *(g.random(4, 4, 6) for _ in range(3)), spread, name="culprit", spatial=0)
    with pytest.raises(UnsupportedOperationError, match=r"node 'culprit' is not supported: .* for every place"):
        load_onnx(g.save(tmp_path / "net.onnx", None))  # type: ignore[arg-type]


def test_clip_between_limits_that_are_no_single_numbers_is_refused(tmp_path: Path) -> None:
    g = Graph(ROW)
    g.add("Clip", g.last, real(g, *range(6)), real(g, 9), name="culprit")
    with pytest.raises(UnsupportedOperationError, match=r"node 'culprit' is not supported: .* single numbers"):
        load_onnx(g.save(tmp_path / "net.onnx", None))  # type: ignore[arg-type]


def limited(path: Path, kind: str, limit: float | list[float]) -> Path:
    """`Max`, `Min`, or `Clip` on its lower side."""
    g = Graph([1, 3])
    constant = g.number(np.array(limit, np.float32))
    g.add(kind, g.last, constant, name="culprit")
    return g.save(path, None)  # type: ignore[arg-type]


FARTHEST = float(np.finfo(np.float32).max)
LIMITS = (999.0, 1001.0, 1e7, 1e10, 3.3e37, 3.4e38, FARTHEST, np.inf)


@pytest.mark.parametrize("size", LIMITS)
@pytest.mark.parametrize("kind", ["Max", "Min", "Clip"])
def test_a_limit_that_nothing_reaches_changes_nothing(kind: str, size: float, tmp_path: Path) -> None:
    path = limited(tmp_path / "net.onnx", kind, size if kind == "Min" else -size)
    network, x = load_onnx(path), torch.tensor([[0.3, -0.4, 0.123]])
    torch.testing.assert_close(network(x), x, atol=1e-4, rtol=0)
    for method in ("ibp", "crown", "alpha-crown"):
        bounds = bound(network, Box(x - 0.01, x + 0.01), method)
        torch.testing.assert_close(bounds.lower, x - 0.01, atol=1e-4, rtol=0)
        torch.testing.assert_close(bounds.upper, x + 0.01, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_a_limit_far_away_still_limits(kind: str, tmp_path: Path) -> None:
    limit = 1e7 if kind == "Max" else -1e7
    path = limited(tmp_path / "net.onnx", kind, limit)
    network, runtime = load_onnx(path), OnnxRuntime(path)
    for x in (torch.tensor([[0.3, 2 * limit, -2 * limit]]), torch.tensor([[limit, limit + 10, limit - 10]])):
        assert torch.equal(network(x).double(), runtime(x).double())
        bounds = bound(network, Box(x - 1, x + 1), "crown")
        assert bool(((bounds.lower <= runtime(x)) & (runtime(x) <= bounds.upper)).all())


def test_a_property_behind_a_limit_far_away_is_decided(tmp_path: Path) -> None:
    path, spec = limited(tmp_path / "net.onnx", "Max", -1e7), tmp_path / "spec.vnnlib"
    words = []
    for formula in ("(<= Y_0 0.2)", "(>= Y_0 0.35)"):
        spec.write_text(vnnlib([0.3] * 3, [0.4] * 3, 3, formula))
        words.append(verify_vnnlib(path, spec, 600.0, certificates=tmp_path / f"proofs{len(words)}").status)
    assert words == ["unsat", "sat"]


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("Max", [-1e7, 0.0, 0.0]),
        ("Min", [0.0, 2e6, 1.0]),
        ("Max", [-np.inf, 0.0, 0.0]),
        ("Max", 3.4e38),
        ("Min", -np.inf),
        ("Max", np.nan),
        ("Clip", np.inf),
        ("Clip", np.nan),
    ],
)
def test_a_limit_that_would_lose_what_it_limits_is_refused(
    kind: str, limit: float | list[float], tmp_path: Path
) -> None:
    path = limited(tmp_path / "net.onnx", kind, limit)
    with pytest.raises(UnsupportedOperationError, match=r"node 'culprit' is not supported: a limit of it.*\.$"):
        load_onnx(path)


@pytest.mark.parametrize("limit", [-np.inf, -1e7])
def test_several_limits_that_nothing_reaches_repeat_as_one_would(limit: float, tmp_path: Path) -> None:
    g = Graph([1, 3])
    g.add("Max", g.last, g.number(np.full((2, 3), limit, np.float32)))
    path = g.save(tmp_path / "net.onnx", None)  # type: ignore[arg-type]
    x = torch.tensor([[0.3, -0.4, 0.123]])
    assert torch.equal(load_onnx(path)(x), x.repeat(1, 2))


def test_a_limit_of_doubles_keeps_its_digits(tmp_path: Path) -> None:
    g = Graph([1, 2], opset=13, dtype=np.float64)
    g.add("Clip", g.last, g.number(np.array(16777217.0)))
    path = g.save(tmp_path / "net.onnx", None)  # type: ignore[arg-type]
    assert load_onnx(path)(torch.tensor([[0.0, 3e7]], dtype=torch.float64)).tolist() == [[16777217.0, 3e7]]
