"""Activations that a file writes as formulas are read as what they are, however the factors stand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interop_cases import Graph
from lipgraft.interop import export_onnx, load_onnx
from lipgraft.interop.clock import OutOfTime
from lipgraft.interop.formulas import recognised
from lipgraft.network import Product, trace


def number(g: Graph, value: float) -> str:
    return g.number(np.float32(value))


def gelu_as_pytorch_writes_it(g: Graph, z: str) -> None:
    erf = g.add("Erf", g.add("Div", z, number(g, 1.4142135381698608)))
    g.add("Mul", g.add("Mul", z, g.add("Add", erf, g.node(np.float32(1.0)))), number(g, 0.5))


def gelu_halved_first(g: Graph, z: str) -> None:
    one = g.add("Add", number(g, 1.0), g.add("Erf", g.add("Mul", number(g, math.sqrt(0.5)), z)))
    g.add("Mul", one, g.add("Div", z, number(g, 2.0)))


def gelu_by_tanh(g: Graph, z: str) -> None:
    cube = g.add("Mul", number(g, 0.044715), g.add("Pow", z, number(g, 3.0)))
    inner = g.add("Tanh", g.add("Mul", g.add("Add", z, cube), number(g, 0.7978845608)))
    g.add("Mul", number(g, 0.5), g.add("Mul", z, g.add("Add", number(g, 1.0), inner)))


def silu(g: Graph, z: str) -> None:
    g.add("Mul", g.add("Sigmoid", z), z)


def silu_and_its_sigmoid(g: Graph, z: str) -> None:
    sigmoid = g.add("Sigmoid", z)
    g.add("Add", sigmoid, g.add("Mul", z, sigmoid))


FORMULAS: dict[str, tuple[Callable[[Graph, str], None], Callable[[Tensor], Tensor], list[str]]] = {
    "gelu as pytorch writes it": (gelu_as_pytorch_writes_it, F.gelu, ["gelu"]),
    "gelu halved first": (gelu_halved_first, F.gelu, ["gelu"]),
    "gelu by tanh": (gelu_by_tanh, lambda z: F.gelu(z, approximate="tanh"), ["gelu"]),
    "silu": (silu, F.silu, ["silu"]),
    "silu and its sigmoid": (silu_and_its_sigmoid, lambda z: z.sigmoid() + F.silu(z), ["sigmoid", "silu"]),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_read_as_the_activation_that_it_is(name: str, tmp_path: Path) -> None:
    write, function, kinds = FORMULAS[name]
    g = Graph([1, 5])
    write(g, g.add("MatMul", g.last, g.number(2 * np.eye(5, dtype=np.float32))))
    model = load_onnx(g.save(tmp_path / "net.onnx", [1, 5]))
    assert sorted(node.kind for _, node in trace(model, (5,)).activations()) == kinds
    x = torch.linspace(-4, 4, 50).reshape(10, 5)
    with torch.no_grad():
        torch.testing.assert_close(model(x), function(2 * x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [0.4, 0.6])
def test_a_formula_with_another_number_is_a_product(factor: float, tmp_path: Path) -> None:
    g = Graph([1, 5])
    z = g.last
    g.add("Mul", z, g.add("Sigmoid", g.add("Mul", z, number(g, factor))))
    network = trace(load_onnx(g.save(tmp_path / "net.onnx", [1, 5])), (5,), products=True)
    assert [node.kind for _, node in network.activations()] == ["sigmoid"]
    assert any(isinstance(node, Product) for node in network.nodes)


class Residual(nn.Module):
    """Activations that sums alone join, and one that reads another."""

    def __init__(self, act: nn.Module, blocks: int) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(blocks))
        self.last, self.act = nn.Linear(4, 3), act

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.first(x))
        for block in self.blocks:
            h = self.act(h + block(h))
        return self.last(self.act(self.act(h)))


@pytest.mark.parametrize("act", [nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU()], ids=str)
def test_formulas_joined_by_arithmetic_alone_are_read_one_by_one(act: nn.Module, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Residual(act, blocks=12).eval()  # so many that walks through all of them would not end
    export_onnx(model, tmp_path / "net.onnx", input_shape=(4,))
    again = load_onnx(tmp_path / "net.onnx")
    kind = "silu" if isinstance(act, nn.SiLU) else "gelu"
    assert [node.kind for _, node in trace(again, (4,)).activations()] == [kind] * 15
    x = torch.linspace(-4, 4, 40).reshape(10, 4)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["Sigmoid", "Erf", "Tanh"])
@pytest.mark.parametrize("step", ["Add", "Mul", "Pow"])
def test_results_that_are_read_twice_time_and_again_are_no_formula_without_end(kind: str, step: str) -> None:
    """Written out, sixty of them would have 2^60 parts, or 3^60."""
    g = Graph([1, 5])
    g.add(kind)
    for _ in range(60):
        g.add(step, g.last, number(g, 3.0) if step == "Pow" else g.last)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in g.constants}
    assert recognised(g.nodes, constants, [g.last]) == g.nodes


def test_formulas_are_looked_for_until_the_deadline_alone() -> None:
    g = Graph([1, 5])
    silu(g, g.last)
    with pytest.raises(OutOfTime):
        recognised(g.nodes, {}, [g.last], time.monotonic() - 1)


def test_a_chain_of_sums_behind_a_sigmoid_is_read(tmp_path: Path) -> None:
    g = Graph([1, 5])
    g.add("Sigmoid", g.add("Mul", g.last, number(g, 1e-3)))
    for _ in range(60):
        g.add("Add", g.last, g.last)
    model = load_onnx(g.save(tmp_path / "net.onnx", [1, 5]))
    assert [node.kind for _, node in trace(model, (5,)).activations()] == ["sigmoid"]
