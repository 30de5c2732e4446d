"""Networks built like those of the verification competition of 2021, in small, verified through the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from interop_cases import Graph, vnnlib
from lipgraft.cli import main
from lipgraft.interop import OnnxRuntime, load_onnx, robustness_vnnlib
from lipgraft.network import trace


def dense(g: Graph, inputs: int, outputs: int) -> str:
    return g.add("Gemm", g.last, g.random(outputs, inputs, scale=inputs**-0.5), g.random(outputs, scale=0.1), transB=1)


def product(g: Graph, inputs: int, outputs: int) -> str:
    g.add("MatMul", g.last, g.random(inputs, outputs, scale=inputs**-0.5))
    return g.add("Add", g.last, g.random(outputs, scale=0.1))


def conv(g: Graph, x: str, channels: int, out: int, kernel: int, stride: int, pad: int) -> str:
    weight = g.random(out, channels, kernel, kernel, scale=(channels * kernel**2) ** -0.5)
    sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    return g.add("Conv", x, weight, g.random(out, scale=0.1), **sizes)


def normalised(g: Graph) -> None:
    """(x - mean) / std, the constants in nodes of their own."""
    g.add("Sub", g.last, g.node(np.array([0.5, 0.4, 0.3], np.float32).reshape(1, 3, 1, 1)))
    g.add("Div", g.last, g.node(np.array([0.2, 0.3, 0.25], np.float32).reshape(1, 3, 1, 1)))


def fully_connected(hidden: int) -> Callable[[Path], Path]:
    """MNIST 256 x n: Flatten, and hidden layers of one width."""

    def build(path: Path) -> Path:
        g = Graph([1, 49, 1], opset=9)
        g.add("Flatten", axis=1)
        for size in [49, *[24] * (hidden - 1)]:
            dense(g, size, 24)
            g.add("Relu")
        dense(g, 24, 10)
        return g.save(path, [1, 10])

    return build


def residual(blocks: int) -> Callable[[Path], Path]:
    """CIFAR ResNet2B and ResNet4B: a convolution, residual blocks with BatchNormalization, two linear layers."""

    def block(g: Graph, channels: int, out: int, stride: int) -> None:
        start = g.last
        conv(g, start, channels, out, 3, stride, 1)
        normed(g, out)
        g.add("Relu")
        conv(g, g.last, out, out, 3, 1, 1)
        deep = normed(g, out)
        if stride == 1 and channels == out:
            g.add("Add", deep, start)
        else:
            conv(g, start, channels, out, 1, stride, 0)
            g.add("Add", deep, normed(g, out))
        g.add("Relu")

    def normed(g: Graph, channels: int) -> str:
        scale, spread = (g.number(g.rng.uniform(0.5, 1.5, channels).astype(np.float32)) for _ in range(2))
        shift, mean = (g.random(channels, scale=0.1) for _ in range(2))
        return g.add("BatchNormalization", g.last, scale, shift, mean, spread)

    def build(path: Path) -> Path:
        g = Graph([1, 3, 8, 8], opset=12)
        conv(g, g.last, 3, 4, 3, 2, 1)
        g.add("Relu")
        block(g, 4, 6, 2)
        for _ in range(blocks - 1):
            block(g, 6, 6, 1)
        g.add("Flatten")
        dense(g, 24, 12)
        g.add("Relu")
        dense(g, 12, 10)
        return g.save(path, [1, 10])

    return build


def oval(*layers: tuple[int, int, int]) -> Callable[[Path], Path]:
    """The OVAL networks: normalised images, convolutions (channels, kernel, stride), Reshape, MatMul + Add."""

    def build(path: Path) -> Path:
        g = Graph(["batch", 3, 8, 8], opset=13)
        normalised(g)
        channels = 3
        for out, kernel, stride in layers:
            conv(g, g.last, channels, out, kernel, stride, 1)
            g.add("Relu")
            channels = out
        g.add("Reshape", g.last, g.node(np.array([-1, 4 * channels], np.int64)))
        product(g, 4 * channels, 16)
        g.add("Relu")
        product(g, 16, 10)
        return g.save(path, ["batch", 10])

    return build


# The network, and how many of its layers are followed by a ReLU.
NETWORKS: dict[str, tuple[Callable[[Path], Path], int]] = {
    "mnist 256x2": (fully_connected(2), 2),
    "mnist 256x4": (fully_connected(4), 4),
    "mnist 256x6": (fully_connected(6), 6),
    "resnet2b": (residual(2), 6),
    "resnet4b": (residual(4), 10),
    "oval base": (oval((4, 4, 2), (6, 4, 2)), 3),
    "oval wide": (oval((8, 4, 2), (12, 4, 2)), 3),
    "oval deep": (oval((4, 4, 2), (4, 3, 1), (4, 3, 1), (4, 4, 2)), 5),
}
OPERATORS = {
    "Conv", "Gemm", "MatMul", "Add", "Relu", "Flatten", "Reshape", "Sub", "Div", "Constant", "BatchNormalization",
}  # fmt: skip


def test_together_the_networks_have_every_operator_of_the_competition(tmp_path: Path) -> None:
    files = [build(tmp_path / f"{i}.onnx") for i, (build, _) in enumerate(NETWORKS.values())]
    assert {node.op_type for file in files for node in onnx.load(file).graph.node} == OPERATORS


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_the_competition_loads_with_all_its_activations(name: str, tmp_path: Path) -> None:
    build, activations = NETWORKS[name]
    path = build(tmp_path / "net.onnx")
    network = load_onnx(path)
    x = torch.rand(4, *network.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network(x), OnnxRuntime(path)(x), atol=1e-5, rtol=1e-5)
    assert len(list(trace(network, network.input_shape).activations())) == activations


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_the_competition_is_verified_and_falsified_on_the_command_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, _ = NETWORKS[name]
    net, spec, results = build(tmp_path / "net.onnx"), tmp_path / "a.vnnlib", tmp_path / "a.txt"
    line = ["vnnlib", str(net), str(spec), "--results", str(results), "--device", "cpu"]
    runtime = OnnxRuntime(net)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(1, *runtime.file.input_shape, generator=generator)
    y = runtime(x)[0]
    label = int(y.argmax())

    # No other class gets ahead close to the image.
    spec.write_text(robustness_vnnlib(x - 1e-3, x + 1e-3, label, 10))
    assert main(line) == 0
    assert capsys.readouterr().out == results.read_text() == "unsat\n"

    # A value that some points of a larger box reach, and its centre does not.
    lower, upper = (x - 0.1).flatten(), (x + 0.1).flatten()
    share = torch.rand(100, *x.shape[1:], generator=generator)
    reached = float(runtime(x - 0.1 + 0.2 * share)[:, label].max())
    assert reached > y[label]
    formula = f"(>= Y_{label} {reached!r})"
    spec.write_text(vnnlib(lower.double().tolist(), upper.double().tolist(), 10, formula))
    assert main(line) == 0
    assert capsys.readouterr().out == "sat\n"
    assert results.read_text().startswith("sat\n((X_0 ")
    values = torch.tensor([float(v) for v in re.findall(r"_\d+ ([^\s)]+)", results.read_text())], dtype=torch.float64)
    point, out = values[:-10].float(), values[-10:]
    assert bool(((lower <= point) & (point <= upper)).all())
    assert out[label] >= reached
    assert torch.equal(runtime(point.reshape(x.shape))[0].double(), out)
