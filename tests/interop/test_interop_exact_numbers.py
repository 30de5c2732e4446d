"""Numbers that no float32 holds, or that other programs round otherwise: no verdict may rest on their rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper

from interop_cases import Graph, vnnlib
from lipgraft.checker import check_folder
from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.interop import OnnxRuntime, load_onnx, verify_vnnlib
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.property_network import _parts
from lipgraft.network import evaluate
from lipgraft.network.build import trace_in_double
from lipgraft.verification import VerifySettings


def asked(graph: Graph, tmp_path: Path, outputs: int, ends: tuple[float, float], formula: str, **options: object):  # type: ignore[no-untyped-def]
    """The verdict on a network over a box with the same ends for all inputs."""
    net = graph.save(tmp_path / "net.onnx", [1, outputs])
    inputs = int(np.prod([n for n in graph.shape if isinstance(n, int)]))
    path = tmp_path / "property.vnnlib"
    path.write_text(vnnlib([ends[0]] * inputs, [ends[1]] * inputs, outputs, formula))
    return verify_vnnlib(net, path, 30.0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("speaks_of", ["real", "float32"])
@pytest.mark.parametrize("certified", [False, True])
def test_coefficients_of_a_property_are_not_rounded(speaks_of: str, certified: bool, tmp_path: Path) -> None:
    # -0.1 and 0.3 as float32 numbers make -0.1 * 3e6 + 0.3 * 1e6 more than 0.005: at x = 0 the row would not hold.
    graph = Graph([1, 25])
    weight = np.zeros((25, 3), np.float32)
    weight[:, 0] = 0.01
    bias = np.array([-0.005, 3e6, 1e6], np.float32)
    graph.add("Gemm", graph.add("Relu"), graph.number(weight), graph.number(bias))
    formula = "(<= (+ (* -0.1 Y_1) (* 0.3 Y_2) Y_0) 0.0)"
    options = {"settings": VerifySettings(speaks_of=speaks_of)}  # type: ignore[arg-type]
    folder = {"certificates": tmp_path / "proofs"} if certified else {}
    answer = asked(graph, tmp_path, 3, (0.0, 1.0), formula, **options, **folder)
    assert answer.status != "unsat"
    lower = formula.replace("0.0)", "-9.0)")  # out of reach, whatever float32 rounds of 3e5
    again = asked(graph, tmp_path, 3, (0.0, 1.0), lower, **options, **folder)
    assert again.status == "unsat"
    if certified:
        [outcome] = check_folder(tmp_path / "proofs")
        assert outcome.accepted


def test_a_coefficient_that_three_numbers_cannot_make_is_refused() -> None:
    A = torch.tensor([[0.1, 1 / 3, 2.0**-24 + 2.0**-76]], dtype=torch.float64)
    assert torch.equal(torch.stack([part.double() for part in _parts(A, torch.float32)]).sum(0), A)
    for value in (1e39, 1e-46):
        with pytest.raises(VnnlibError, match="scale its row"):
            _parts(torch.tensor([[value]], dtype=torch.float64), torch.float32)


TOO_FINE = np.array([16777217.0])  # 2 ** 24 + 1: a float64, and no float32


def product(g: Graph, z: str) -> None:
    g.add("Sub", g.add("Mul", z, g.number(TOO_FINE)), g.add("Mul", z, g.number(TOO_FINE - 1)))


def lower_limit(g: Graph, z: str) -> None:
    g.add("Sub", g.add("Clip", z, g.number(TOO_FINE[0])), g.number(TOO_FINE - 1))


def two_limits(g: Graph, z: str) -> None:
    g.add("Sub", g.add("Clip", z, g.number(TOO_FINE[0]), g.number(2 * TOO_FINE[0])), g.number(TOO_FINE - 1))


@pytest.mark.parametrize("inner", [product, lower_limit, two_limits])
def test_a_constant_that_the_input_type_cannot_hold_is_refused(inner, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    graph = Graph([1, 1])
    inner(graph, graph.add("Cast", to=11))
    graph.add("Cast", to=1)
    with pytest.raises(UnsupportedOperationError, match="cannot hold"):
        asked(graph, tmp_path, 1, (0.0, 1.0), "(>= Y_0 0.5)")


def test_a_constant_of_another_type_that_is_held_exactly_is_read(tmp_path: Path) -> None:
    graph = Graph([1, 1])
    graph.add("Mul", graph.add("Cast", to=11), graph.number(TOO_FINE - 1))
    graph.add("Cast", to=1)
    assert load_onnx(graph.save(tmp_path / "net.onnx", [1, 1]))(torch.ones(1, 1)).item() == TOO_FINE[0] - 1


@pytest.mark.parametrize("inner", [product, lower_limit, two_limits])
def test_a_float64_network_keeps_the_digits_of_its_constants(inner, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    graph = Graph([1, 1], dtype=np.float64)
    inner(graph, "x")
    path = graph.save(tmp_path / "net.onnx", [1, 1])
    x = torch.ones(1, 1, dtype=torch.float64)
    assert load_onnx(path)(x).item() == OnnxRuntime(path)(x).item() == 1.0
    assert asked(graph, tmp_path, 1, (0.0, 1.0), "(>= Y_0 0.5)").status == "sat"


def test_an_epsilon_that_a_file_leaves_out_is_a_float32_number(tmp_path: Path) -> None:
    graph = Graph([1, 1], dtype=np.float64)
    graph.add("BatchNormalization", "x", *(graph.number(np.array([n])) for n in (1.0, 0.0, 0.0, 0.0)))
    path = graph.save(tmp_path / "net.onnx", [1, 1])
    x = torch.tensor([[-1e6]], dtype=torch.float64)
    torch.testing.assert_close(load_onnx(path)(x), OnnxRuntime(path)(x), rtol=1e-14, atol=0.0)


def test_a_slope_that_a_file_leaves_out_is_a_float32_number(tmp_path: Path) -> None:
    graph = Graph([1, 1], dtype=np.float64)
    graph.add("LeakyRelu", graph.add("Cast", to=1))  # onnxruntime has none of float64
    graph.add("Cast", to=11)
    x = torch.tensor([[-1.0]], dtype=torch.float64)
    assert load_onnx(graph.save(tmp_path / "net.onnx", [1, 1]))(x).item() == -float(np.float32(0.01))


def test_a_proof_about_float32_does_not_leave_a_softmax_out(tmp_path: Path) -> None:
    # The first output takes all: both others are 0 in float32, and equal, though their order is clear before.
    graph = Graph([1, 1])
    weight, bias = np.array([[1000, 0, 0]], np.float32), np.array([0, 1, 0], np.float32)
    graph.add("Gemm", graph.add("Relu"), graph.number(weight), graph.number(bias))
    graph.add("Softmax")
    with pytest.raises(SettingsError, match="Softmax is left out"):
        asked(graph, tmp_path, 3, (-1.0, 0.0), "(<= Y_1 Y_2)", settings=VerifySettings(speaks_of="float32"))
    assert asked(graph, tmp_path, 3, (-1.0, 0.0), "(<= Y_1 Y_2)").status == "unsat"  # about real numbers


@pytest.mark.parametrize("kind", ["RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Bernoulli",
                                  "Dropout"])  # fmt: skip
def test_a_random_number_is_no_constant(kind: str, tmp_path: Path) -> None:
    graph = Graph([1, 2], opset=15)
    half = graph.number(np.array([[0.5, 0.5]], np.float32))
    alone = kind in ("RandomUniform", "RandomNormal")
    if alone:  # a node without inputs, which the helper has no word for
        graph.nodes.append(helper.make_node(kind, [], ["drawn"], "culprit", shape=[1, 2]))
    told = [graph.number(np.float32(0.5)), graph.number(np.array(True))] if kind == "Dropout" else []
    drawn = "drawn" if alone else graph.add(kind, half, *told, name="culprit")
    graph.add("Add", "x", graph.add("Mul", drawn, graph.number(np.float32(1e-6))))  # too small to be seen otherwise
    with pytest.raises(UnsupportedOperationError, match=r"culprit.*random"):
        load_onnx(graph.save(tmp_path / "net.onnx", [1, 2]))


def test_a_mean_of_three_is_proved_of_thirds(tmp_path: Path) -> None:
    graph = Graph([1, 3])
    graph.add("ReduceMean", axes=[1])  # float32(1/3) * 9e6 is 3e6 + 0.09
    formula = "(and (<= Y_0 3000000.05) (>= Y_0 2999999.95))"
    assert asked(graph, tmp_path, 1, (3e6, 3.1e6), formula).status != "unsat"
    network = trace_in_double(load_onnx(tmp_path / "net.onnx"), (3,))
    x = torch.full((1, 3), 3e6, dtype=torch.float64)
    assert evaluate(network, x)[network.output].item() == pytest.approx(3e6, abs=1e-6)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 1.0), (1.0, 0.1), (0.1, 0.3), (0.5, -2.0), (0.0, 0.7), (0.7, 0.0)])
def test_factors_of_a_product_are_not_folded_into_rounded_weights(
    alpha: float, beta: float, rows: int, first: bool, tmp_path: Path
) -> None:
    graph = Graph([rows, 2] if not first else [2, rows])
    weight, bias = graph.rng.standard_normal((2, 2)).astype(np.float32), np.array([[0.3], [0.7]], np.float32)
    bias = bias if first else bias.T
    pair = (graph.number(weight), "x") if first else ("x", graph.number(weight))
    graph.add("Gemm", *pair, graph.number(bias), alpha=alpha, beta=beta)
    x = graph.rng.standard_normal(graph.shape)  # type: ignore[arg-type]
    path = graph.save(tmp_path / "net.onnx", [2, rows] if first else [rows, 2])
    product = weight.astype(float) @ x if first else x @ weight.astype(float)
    exact = float(np.float32(alpha)) * product + float(np.float32(beta)) * bias.astype(float)
    loaded = load_onnx(path)
    network = trace_in_double(loaded, loaded.input_shape)
    got = evaluate(network, torch.from_numpy(x).reshape(1, *loaded.input_shape))[network.output]
    np.testing.assert_allclose(got.numpy().ravel(), exact.ravel(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("operator", ["Max", "Min", "Clip"])
def test_numbers_that_only_doubles_hold_are_limited_as_the_file_says(operator: str, tmp_path: Path) -> None:
    sign = 1.0 if operator == "Min" else -1.0
    for limit, refused in ((sign * 1e39, True), (sign * 1e5, False)):
        graph = Graph([1, 1], dtype=np.float64)
        number = np.array(limit) if operator == "Clip" else np.array([limit])
        graph.add(operator, "x", graph.number(number))
        path = graph.save(tmp_path / f"{operator}-{refused}.onnx", [1, 1])
        if refused:
            with pytest.raises(UnsupportedOperationError, match="beyond 1e"):
                load_onnx(path)
        else:  # the other end is free, up to the largest double
            far = torch.full((1, 1), -sign * 1e39, dtype=torch.float64)
            assert torch.equal(load_onnx(path)(far), far)
