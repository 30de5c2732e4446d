"""ONNX files become modules that compute what onnxruntime computes, and that can be bounded."""

from __future__ import annotations

import contextlib
import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from interop_cases import CASES, Graph, vnnlib
from lipgraft import Box, bound, grafting, models
from lipgraft.errors import CheckpointError, LipgraftError, UnsupportedOperationError
from lipgraft.interop import OnnxNetwork, OnnxRuntime, fingerprint_onnx, load_onnx, verify_vnnlib
from lipgraft.interop.load import check_import, import_checked
from lipgraft.models.hashing import fingerprint
from lipgraft.network import trace

OPSETS = (9, 13, 21)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", CASES)
def test_an_imported_network_computes_what_onnxruntime_computes(name: str, opset: int, tmp_path: Path) -> None:
    path = CASES[name](tmp_path / "net.onnx", opset)
    network, runtime = load_onnx(path), OnnxRuntime(path)
    x = torch.randn(5, *network.input_shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got, expected = network(x), runtime(x)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert expected.std() > 0


@pytest.mark.parametrize("name", CASES)
def test_bounds_of_an_imported_network_hold_for_points_in_the_box(name: str, tmp_path: Path) -> None:
    path = CASES[name](tmp_path / "net.onnx", 13)
    network, runtime = load_onnx(path), OnnxRuntime(path)
    generator = torch.Generator().manual_seed(2)
    box = Box.linf(torch.rand(1, *network.input_shape, generator=generator), 0.1)
    bounds = bound(network, box, "crown")
    share = torch.rand(200, *network.input_shape, generator=generator)
    y = runtime(box.lower + share * (box.upper - box.lower))
    assert bool((y >= bounds.lower - 1e-5).all())
    assert bool((y <= bounds.upper + 1e-5).all())
    assert bool((bounds.upper - bounds.lower < 100).all())


def test_a_network_in_double_precision_stays_so(tmp_path: Path) -> None:
    g = Graph([1, 3], dtype=np.float64)
    g.add("Gemm", g.last, g.random(3, 2), g.random(2))
    path = g.save(tmp_path / "double.onnx", [1, 2])
    x = torch.rand(2, 3, dtype=torch.float64)
    assert load_onnx(path)(x).dtype == torch.float64
    torch.testing.assert_close(load_onnx(path)(x).detach(), OnnxRuntime(path)(x), atol=1e-12, rtol=0)


def test_models_load_reads_onnx_files_and_they_can_be_grafted(tmp_path: Path) -> None:
    network = models.load(CASES["convolutions"](tmp_path / "net.onnx", 13))
    shapes = {node.name: node.shape for _, node in trace(network, network.input_shape).activations()}
    assert list(shapes) == ["relu3", "relu5"]
    masks = {name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()}
    grafted = grafting.apply(network, masks, slope=0.5, input_shape=network.input_shape)
    x = torch.rand(2, *network.input_shape)
    middle = (grafted(x[:1]) + grafted(x[1:])) / 2
    torch.testing.assert_close(grafted(x.mean(0, keepdim=True)), middle)  # all neurons are lines: the network is affine


def test_matmul_and_add_become_one_linear_layer(tmp_path: Path) -> None:
    network = load_onnx(CASES["collision_avoidance"](tmp_path / "net.onnx", 13))
    layers = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
    assert len(layers) == 3
    assert all(layer.bias is not None for layer in layers)


def test_a_product_that_is_read_twice_keeps_its_own_value(tmp_path: Path) -> None:
    g = Graph([1, 3])
    product = g.add("MatMul", g.last, g.random(3, 3))
    g.add("Add", product, g.random(3))
    g.add("Add", product, g.last)
    path = g.save(tmp_path / "net.onnx", [1, 3])
    x = torch.rand(2, 3)
    torch.testing.assert_close(load_onnx(path)(x).detach(), OnnxRuntime(path)(x))


ALIASES: dict[str, Callable[[Graph, str], str]] = {
    "Identity": lambda g, x: g.add("Identity", x),
    "Dropout": lambda g, x: g.add("Dropout", x),
    "Reshape": lambda g, x: g.add("Reshape", x, g.number(np.array([1, 2], np.int64))),
    "Flatten": lambda g, x: g.add("Flatten", x),
    "Cast": lambda g, x: g.add("Cast", x, to=1),
    "Transpose": lambda g, x: g.add(
        "Reshape", g.add("Transpose", x, perm=[1, 0]), g.number(np.array([1, 2], np.int64))
    ),
    "Squeeze": lambda g, x: g.add("Unsqueeze", g.add("Squeeze", x, g.number(np.array([0]))), g.number(np.array([0]))),
}


def read_under_two_names(path: Path, alias: str, *, first: bool, bias: float, large: float = 0.0) -> Path:
    """Y_0 = relu(x + bias) + x, Y_1 = large; the product x is read by two names.

    first: whether the bias is added to the alias, or to the product itself.
    """
    g = Graph([1, 2])
    product = g.add("MatMul", g.last, g.number(np.array([[1.0, 0.0], [0.0, 0.0]], np.float32)))
    other = ALIASES[alias](g, product)
    added, plain = (other, product) if first else (product, other)
    biased = g.add("Add", added, g.number(np.array([bias, large], np.float32)))
    g.add("Add", g.add("Relu", biased), plain)
    return g.save(path, [1, 2])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("alias", ALIASES)
def test_a_product_that_is_read_under_another_name_keeps_its_own_value(alias: str, first: bool, tmp_path: Path) -> None:
    path = read_under_two_names(tmp_path / "net.onnx", alias, first=first, bias=0.5)
    x = torch.tensor([[0.25, 0.0], [1.0, 0.0]])
    with torch.no_grad():
        assert load_onnx(path)(x)[:, 0].tolist() == [1.0, 2.5]


def test_biases_are_still_folded_through_other_names(tmp_path: Path) -> None:
    g = Graph([1, 3])
    g.add("MatMul", g.last, g.random(3, 4))
    g.add("Identity")
    g.add("Add", g.last, g.random(4))
    g.add("Relu")
    network = load_onnx(g.save(tmp_path / "net.onnx", [1, 4]))
    assert [type(layer).__name__ for layer in network.children()] == ["Linear", "ReLU"]


def wrong_in_one_output(network: OnnxNetwork) -> None:
    for layer in network.children():
        if isinstance(layer, torch.nn.Linear):
            with torch.no_grad():
                layer.weight[0] *= 1.5


def two_scales(path: Path) -> Path:
    """One output near 1e-3, the other near 1e6."""
    g = Graph([1, 3])
    g.add("Gemm", g.last, g.number(np.array([[1e-3, 1e6]] * 3, np.float32)), g.random(2))
    return g.save(path, [1, 2])


def test_an_import_is_compared_output_by_output(tmp_path: Path) -> None:
    judge = OnnxRuntime(two_scales(tmp_path / "net.onnx"))
    network = import_checked(judge)
    wrong_in_one_output(network)
    with pytest.raises(UnsupportedOperationError, match="in output 0"):
        check_import(network, judge, torch.rand(4, 3))


def test_sums_that_cancel_are_no_difference(tmp_path: Path) -> None:
    """Outputs near 0 between numbers near 1e6: onnxruntime rounds otherwise, and that is no fault of the import."""
    g = Graph([1, 64])
    weight = 1e6 * g.rng.standard_normal((64, 64)).astype(np.float32)
    g.add("Gemm", g.last, g.number(weight), g.random(64))
    g.add("Relu")
    half = g.rng.standard_normal((32, 8)).astype(np.float32)
    g.add("MatMul", g.last, g.number(np.concatenate([half, -half]) * 1e3))
    load_onnx(g.save(tmp_path / "net.onnx", [1, 8]))


def sparse(path: Path, indices: list[int] | list[list[int]]) -> Path:
    """y = x [[1, 0], [0, 2]], with the two numbers alone in the file."""
    g = Graph([1, 2])
    g.add("MatMul", g.last, "w")
    g.save(path, [1, 2])
    model = onnx.load(path)
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    places = numpy_helper.from_array(np.array(indices, np.int64), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 2]))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("indices", [[0, 3], [[0, 0], [1, 1]]])
def test_sparse_initialisers_are_read(indices: list[int], tmp_path: Path) -> None:
    network = load_onnx(sparse(tmp_path / "net.onnx", indices))
    assert network(torch.tensor([[3.0, 4.0]])).tolist() == [[3.0, 8.0]]


@pytest.mark.parametrize("indices", [[0, 9], [0, -1], [[0, 0], [1, 7]], [0, 1, 2]])
def test_damaged_sparse_initialisers_are_an_error(indices: list[int], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"net\.onnx"):
        load_onnx(sparse(tmp_path / "net.onnx", indices))


def with_weights_outside(path: Path, scale: float = 1.0) -> Path:
    """y = scale x, the weights in weights.bin beside the file."""
    g = Graph([1, 2])
    g.add("MatMul", g.last, g.number(scale * np.eye(2, dtype=np.float32), "w"))
    g.save(path, [1, 2])
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    (path.parent / "weights.bin").unlink(missing_ok=True)
    onnx.save(onnx.load(path), path, **options)
    return path


def test_weights_in_another_file_are_read(tmp_path: Path) -> None:
    network = load_onnx(with_weights_outside(tmp_path / "net.onnx", 3.0))
    assert network(torch.tensor([[1.0, 2.0]])).tolist() == [[3.0, 6.0]]


@pytest.mark.parametrize("damage", ["missing", "cut", "a folder", "elsewhere"])
def test_weights_that_are_missing_are_one_sentence(damage: str, tmp_path: Path) -> None:
    path, weights = with_weights_outside(tmp_path / "net.onnx"), tmp_path / "weights.bin"
    match damage:
        case "missing":
            weights.unlink()
        case "cut":
            weights.write_bytes(weights.read_bytes()[:5])
        case "a folder":
            weights.unlink()
            weights.mkdir()
        case "elsewhere":
            model = onnx.load(path, load_external_data=False)
            model.graph.initializer[0].external_data[0].value = "../weights.bin"
            onnx.save(model, path)
    with pytest.raises(CheckpointError, match=r"net\.onnx") as raised:
        load_onnx(path)
    assert "\n" not in str(raised.value)


def test_a_fingerprint_is_of_the_graph_and_of_all_weights(tmp_path: Path) -> None:
    one = fingerprint_onnx(with_weights_outside(tmp_path / "net.onnx"))
    assert fingerprint_onnx(tmp_path / "net.onnx") == one
    graph = (tmp_path / "net.onnx").read_bytes()
    two = fingerprint_onnx(with_weights_outside(tmp_path / "net.onnx", 2.0))
    assert (tmp_path / "net.onnx").read_bytes() == graph  # only weights.bin has changed
    assert one != two
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(CheckpointError, match=r"weights\.bin"):
        fingerprint_onnx(tmp_path / "net.onnx")


def test_the_wiring_of_an_imported_network_is_part_of_its_fingerprint(tmp_path: Path) -> None:
    """The same layers and weights: relu(x) - x, and x - relu(x)."""

    def saved(name: str, *, swapped: bool) -> OnnxNetwork:
        g = Graph([1, 2])
        product = g.add("MatMul", g.last, g.number(np.eye(2, dtype=np.float32)), name="product")
        relu = g.add("Relu", name="relu")
        g.add("Sub", *((product, relu) if swapped else (relu, product)), name="minus")
        return load_onnx(g.save(tmp_path / name, [1, 2]))

    assert fingerprint(saved("a.onnx", swapped=False)) != fingerprint(saved("b.onnx", swapped=True))
    assert fingerprint(saved("a.onnx", swapped=False)) == fingerprint(saved("c.onnx", swapped=False))


@pytest.mark.long
def test_a_file_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    whole = CASES["small_operators"](tmp_path / "net.onnx", 13).read_bytes()
    changed, rng = tmp_path / "changed.onnx", np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 200).tolist():
        data = bytearray(whole)
        data[place] ^= int(rng.integers(1, 256))
        changed.write_bytes(bytes(data))
        with contextlib.suppress(LipgraftError):
            load_onnx(changed)


def test_gzipped_files_are_read(tmp_path: Path) -> None:
    path = CASES["convolutions"](tmp_path / "net.onnx", 13)
    packed = tmp_path / "net.onnx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    x = torch.rand(2, 3, 6, 6)
    torch.testing.assert_close(load_onnx(packed)(x), load_onnx(path)(x))


def test_a_number_that_is_repeated_can_be_loaded_from_a_state_dict(tmp_path: Path) -> None:
    g = Graph([1, 4])
    x = g.last
    g.add("Add", x, g.add("MatMul", x, g.random(4, 1)))
    network = load_onnx(g.save(tmp_path / "net.onnx", [1, 4]))
    network.load_state_dict({name: tensor.clone() for name, tensor in network.state_dict().items()})


def broken(kind: str, tmp_path: Path) -> Path:
    """A file with one node that cannot be imported; the node is called `culprit`."""
    image = kind in ("MaxPool", "Resize", "AveragePool")
    g = Graph([1, 2, 4, 4] if image else [1, 4])
    x = g.last
    match kind:
        case "MaxPool":
            g.add("MaxPool", name="culprit", kernel_shape=[2, 2], pads=[0, 0, 1, 1])
        case "AveragePool":
            g.add("AveragePool", name="culprit", kernel_shape=[2, 2], pads=[0, 0, 1, 1])
        case "Resize":
            g.add("Resize", x, "", g.number(np.array([1, 1, 1.5, 1], np.float32)), name="culprit", mode="nearest")
        case "Pad":
            g.add("Pad", x, g.number(np.array([0, 1, 0, 0])), g.number(np.float32(1.0)), name="culprit")
        case "Pow":
            g.add("Pow", g.random(4), x, name="culprit")
        case "MatMul":
            g.add("MatMul", x, g.add("Reshape", x, g.number(np.array([4, 1]))), name="culprit")
        case "Softmax":
            g.add("Softmax", name="culprit", axis=1)
        case "Cast":
            g.add("Cast", name="culprit", to=10)
            g.add("Cast", to=1)
        case "Exp":
            g.add("Exp", x, name="culprit")
    return g.save(tmp_path / "net.onnx", None)  # type: ignore[arg-type]


KINDS = ("MaxPool", "AveragePool", "Resize", "Pad", "Pow", "MatMul", "Softmax", "Cast", "Exp")


@pytest.mark.parametrize("kind", KINDS)
def test_an_unsupported_operator_is_named_with_its_node(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperationError, match=rf"{kind} of node 'culprit'"):
        load_onnx(broken(kind, tmp_path))


def test_a_truncated_file_is_an_error_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = CASES["convolutions"](tmp_path / "net.onnx", 13).read_bytes()
    cut = tmp_path / "cut.onnx"
    for length in [0, 1, 2, 10, *range(50, len(whole), 97), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(LipgraftError):
            load_onnx(cut)


@pytest.mark.parametrize("content", [b"", b"no model at all", bytes(range(256)), b"\x1f\x8b broken"])
def test_a_foreign_file_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"net\.onnx"):
        load_onnx(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        load_onnx(tmp_path / "none.onnx")


@pytest.mark.parametrize("shape", [["n", "m"], ["n"], [2, "m"]])
def test_an_input_without_a_fixed_size_is_refused(shape: list[int | str], tmp_path: Path) -> None:
    g = Graph(shape)
    g.add("Relu")
    with pytest.raises(UnsupportedOperationError, match="no fixed size"):
        load_onnx(g.save(tmp_path / "net.onnx", shape))


def test_a_fixed_batch_of_several_images_is_refused(tmp_path: Path) -> None:
    g = Graph([4, 2, 3, 3])
    g.add("Conv", g.last, g.random(1, 2, 3, 3))
    with pytest.raises(UnsupportedOperationError, match="Conv"):
        load_onnx(g.save(tmp_path / "net.onnx", [4, 1, 1, 1]))


def test_two_outputs_are_refused(tmp_path: Path) -> None:
    path = CASES["fully_connected_gemm"](tmp_path / "net.onnx", 13)
    model = onnx.load(path)
    model.graph.output.append(onnx.helper.make_tensor_value_info(model.graph.node[0].output[0], 1, [1, 12]))
    onnx.save(model, path)
    with pytest.raises(UnsupportedOperationError, match="2 outputs"):
        load_onnx(path)


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    g = Graph([1, 2])
    g.add("MatMul", g.last, g.number(np.array([[np.nan, 1.0], [1.0, 1.0]], np.float32)))
    with pytest.raises(UnsupportedOperationError, match="differs from onnxruntime"):
        load_onnx(g.save(tmp_path / "net.onnx", [1, 2]))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CASES["fully_connected_gemm"](tmp_path / "net.onnx", 13)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CheckpointError, match=rf"{package} package: pip install onnx onnxruntime"):
        load_onnx(path)


def test_a_large_neuron_does_not_hide_a_wrong_output_that_does_not_read_it(tmp_path: Path) -> None:
    """(relu(x_0) + c, 1e-6 relu(x_1 + 1e6)), read from one file and compared with another."""

    def saved(name: str, c: float) -> Path:
        g = Graph([1, 2])
        g.add("Relu", g.add("Add", g.last, g.number(np.array([0.0, 1e6], np.float32))))
        g.add("MatMul", g.last, g.number(np.diag(np.array([1.0, 1e-6], np.float32))))
        g.add("Add", g.last, g.number(np.array([c, 0.0], np.float32)))
        return g.save(tmp_path / name, [1, 2])

    judge, x = OnnxRuntime(saved("net.onnx", 1.0)), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    check_import(load_onnx(tmp_path / "net.onnx"), judge, x)
    with pytest.raises(UnsupportedOperationError, match="in output 0"):
        check_import(load_onnx(saved("other.onnx", 1.01)), judge, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kind", "attributes"), [("MaxPool", {"kernel_shape": [3, 1]}), ("ReduceMean", {"axes": [2]})])
def test_a_network_without_parameters_has_the_type_of_its_file(
    kind: str, attributes: dict[str, list[int]], dtype: type, tmp_path: Path
) -> None:
    g = Graph([1, 2, 3, 4], dtype=dtype)
    g.add(kind, **attributes)
    net, spec = g.save(tmp_path / "net.onnx", None), tmp_path / "spec.vnnlib"  # type: ignore[arg-type]
    network, runtime = load_onnx(net), OnnxRuntime(net)
    x = torch.rand(1, 2, 3, 4, generator=torch.Generator().manual_seed(0)).to(getattr(torch, np.dtype(dtype).name))
    torch.testing.assert_close(network(x), runtime(x).reshape(1, -1))
    words = []
    for limit in (0.9, 1.1):
        spec.write_text(vnnlib([0.0] * 24, [1.0] * 24, 8, f"(>= Y_0 {limit})"))
        words.append(verify_vnnlib(net, spec, 600.0).status)
    assert words == ["sat", "unsat"]


@pytest.mark.parametrize("name", ["training", "steps", "forward", "number_type", "T_destination", "_modules"])
def test_a_node_may_have_any_name(name: str, tmp_path: Path) -> None:
    g = Graph([1, 3])
    g.add("Relu", name=name)
    path = g.save(tmp_path / "net.onnx", [1, 3])
    x = torch.tensor([[-1.0, 0.5, 2.0]])
    torch.testing.assert_close(load_onnx(path)(x), OnnxRuntime(path)(x))
