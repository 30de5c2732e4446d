"""ONNX and VNNLIB against exact answers (a MILP, solved by SciPy's HiGHS), in both directions.

Every network comes with two thresholds, one on each side of the exact optimum: one property holds, the other does not.
The networks are built to break importers and verifiers: products read under several names, shortcuts, badly scaled
layers, narrow bumps, dead and always active neurons, conditions of several rows, disjunctions of boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from interop_cases import Graph
from lipgraft.interop import verify_vnnlib

Array = np.ndarray


@dataclass
class Net:
    """y = V relu(W2 relu(W1 x + b1) + b2) + T (W1 x) + U relu(W1 x + b1) + c, each matrix (results, inputs)."""

    W1: Array
    b1: Array
    W2: Array
    b2: Array
    V: Array
    T: Array
    U: Array
    c: Array

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            setattr(self, name, np.asarray(value, np.float32))

    def save(self, path: Path, style: int) -> Path:
        """The same function in one of four styles of writing it down."""
        g = Graph([1, self.W1.shape[1]])
        product = g.add("MatMul", g.last, g.number(self.W1.T.copy()))
        names = (
            lambda: product,
            lambda: g.add("Identity", product),
            lambda: g.add("Reshape", product, g.number(np.array([1, -1], np.int64))),
            lambda: g.add("Dropout", product),
        )
        one, other = names[style](), names[-style]()
        h1 = g.add("Relu", g.add("Add", one, g.number(self.b1)))
        if style % 2:
            g.add("Gemm", h1, g.number(self.W2), g.number(self.b2), transB=1)
        else:
            g.add("Sub", g.add("MatMul", h1, g.number(self.W2.T.copy())), g.number(-self.b2))
        h2 = g.add("Relu")
        deep = g.add("Gemm", h2, g.number(self.V), g.number(self.c), transB=1)
        short = g.add("MatMul", g.add("Identity", other), g.number(self.T.T.copy()))
        middle = g.add("Neg", g.add("MatMul", h1, g.number(-self.U.T.copy())))
        g.add("Add", g.add("Add", deep, short), middle)
        return g.save(path, [1, len(self.c)])

    def least_excess(self, low: Array, high: Array, A: Array, b: Array) -> float:
        """min over x in the box of max_i (A_i y - b_i), exactly. Variables: x, z1, h1, s1, z2, h2, s2, t."""
        w1, w2, v, t, u = (m.astype(float) for m in (self.W1, self.W2, self.V, self.T, self.U))
        b1, b2, c = (m.astype(float) for m in (self.b1, self.b2, self.c))
        n, k1, k2 = w1.shape[1], len(b1), len(b2)
        x, z1, h1, s1, z2, h2, s2, top = np.split(
            np.arange(n + 3 * k1 + 3 * k2 + 1), np.cumsum([n, k1, k1, k1, k2, k2, k2])
        )
        size = int(top[0]) + 1
        zl1, zh1 = _interval(w1, b1, low, high)
        zl2, zh2 = _interval(w2, b2, np.maximum(zl1, 0), np.maximum(zh1, 0))
        rows: list[LinearConstraint] = []

        def add(parts: list[tuple[Array, Array]], least: Array | float, most: Array | float) -> None:
            matrix = np.zeros((len(parts[0][1]), size))
            for columns, values in parts:
                matrix[:, columns] += values
            rows.append(LinearConstraint(matrix, least, most))

        add([(z1, np.eye(k1)), (x, -w1)], b1, b1)
        add([(z2, np.eye(k2)), (h1, -w2)], b2, b2)
        for z, h, s, zl, zh in ((z1, h1, s1, zl1, zh1), (z2, h2, s2, zl2, zh2)):
            one = np.eye(len(z))
            add([(h, one), (z, -one)], 0, np.inf)
            add([(h, one), (z, -one), (s, np.diag(-np.minimum(zl, 0)))], -np.inf, -np.minimum(zl, 0))
            add([(h, one), (s, -np.diag(np.maximum(zh, 0)))], -np.inf, 0)
        parts = [(h2, A @ v), (x, A @ t @ w1), (h1, A @ u), (top, -np.ones((len(A), 1)))]
        add(parts, -np.inf, b - A @ c)
        lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
        lower[x], upper[x] = low, high
        for h in (h1, h2):
            lower[h] = 0
        whole = np.zeros(size)
        for s in (s1, s2):
            lower[s], upper[s], whole[s] = 0, 1, 1
        cost = np.zeros(size)
        cost[top] = 1
        options = {"mip_rel_gap": 0.0}
        solved = milp(cost, constraints=rows, integrality=whole, bounds=Bounds(lower, upper), options=options)
        assert solved.success
        return float(solved.fun)


def _interval(w: Array, b: Array, low: Array, high: Array) -> tuple[Array, Array]:
    plus, minus = np.maximum(w, 0), np.minimum(w, 0)
    return plus @ low + minus @ high + b, plus @ high + minus @ low + b


def random_net(rng: np.random.Generator, inputs: int, *, scale: float = 1.0, wired: bool = False) -> Net:
    """scale: of the first layer, taken back by the second: the function stays about as large."""
    k1, k2, outputs = 8, 6, 3
    return Net(
        scale * rng.standard_normal((k1, inputs)) * (2 / inputs) ** 0.5,
        scale * 0.5 * rng.standard_normal(k1),
        rng.standard_normal((k2, k1)) * k1**-0.5 / scale,
        0.3 * rng.standard_normal(k2),
        rng.standard_normal((outputs, k2)),
        wired * rng.standard_normal((outputs, k1)) / scale,
        wired * 0.5 * rng.standard_normal((outputs, k1)) / scale,
        rng.standard_normal(outputs),
    )


def bump(rng: np.random.Generator, inputs: int) -> Net:
    """Y_0 has a tent 1e-2 wide in a direction of the inputs; the other outputs are constants."""
    direction, place, width = rng.standard_normal(inputs), rng.uniform(-0.3, 0.3), 1e-2
    W1 = np.repeat(direction[None] / np.abs(direction).sum() / width, 3, 0)
    b1 = -np.array([place - width, place, place + width]) / width
    W2, V = np.array([[1.0, -2.0, 1.0]]), np.array([[-1.0], [0.0], [0.0]])
    return Net(W1, b1, W2, [0.0], V, np.zeros((3, 3)), np.zeros((3, 3)), [0.0, 1.0, 2.0])


def stuck(rng: np.random.Generator, inputs: int) -> Net:
    """Half of the neurons are dead or always active, far from their kinks."""
    net = random_net(rng, inputs)
    net.b1[:4] = [-50.0, 50.0, -30.0, 30.0]
    net.b2[:2] = [-200.0, 100.0]
    return net


FAMILIES = {
    "plain": lambda rng, inputs: random_net(rng, inputs),
    "wired": lambda rng, inputs: random_net(rng, inputs, wired=True),
    "large": lambda rng, inputs: random_net(rng, inputs, scale=1e3, wired=True),
    "small": lambda rng, inputs: random_net(rng, inputs, scale=1e-3, wired=True),
    "bump": bump,
    "stuck": stuck,
}


def property_text(cases: list[tuple[Array, Array, Array, Array]]) -> str:
    """A disjunction of boxes with conditions A y <= b, with noise that must not be read."""
    inputs, outputs = len(cases[0][0]), cases[0][2].shape[1]
    lines = ["; (assert (<= X_0 -99))", '(set-info :source "(assert (<= X_0 -99))")']
    lines += [f"(declare-const X_{i} Real)" for i in range(inputs)]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    parts = []
    for low, high, A, b in cases:
        bounds = [f"(>= X_{i} {low[i]!r}) (<= X_{i} {high[i]!r})" for i in range(inputs)]
        sums = [" ".join(f"(* {float(a)!r} Y_{j})" for j, a in enumerate(row)) for row in A]
        conditions = [f"(<= (+ {s}) {float(limit)!r})" for s, limit in zip(sums, b, strict=True)]
        parts.append(f"(and {' '.join([*bounds, *conditions])})")
    return "\n".join([*lines, f"(assert (or (or) {' '.join(parts)}))"])


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("family", FAMILIES)
def test_with_few_inputs_every_word_is_right(family: str, seed: int, tmp_path: Path) -> None:
    assert words(family, 2, seed, tmp_path, 120.0) == ["unsat", "sat"]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_many_inputs_no_word_is_wrong(family: str, seed: int, tmp_path: Path) -> None:
    """Through the verifier of images, which may need longer than a test should take."""
    holds, violated = words(family, 22, seed, tmp_path, 2.0)
    assert holds in ("unsat", "unknown", "timeout")
    assert violated in ("sat", "unknown", "timeout")


def words(family: str, inputs: int, seed: int, folder: Path, limit: float) -> list[str]:
    """What is said of a property that just holds, and of one that just does not."""
    rng = np.random.default_rng([seed, inputs, *family.encode()])
    net = FAMILIES[family](rng, inputs)
    path = net.save(folder / "net.onnx", seed % 4)
    rows, regions = 1 + seed % 3, 1 + (seed // 3) % 3
    cases, excess = [], []
    for _ in range(regions):
        centre = rng.uniform(-0.5, 0.5, inputs)
        low, high = (end.astype(np.float32).astype(float).tolist() for end in (centre - 0.5, centre + 0.5))
        A = rng.standard_normal((rows, 3))
        A[0] = [1.0, 0.0, 0.0]
        b = rng.standard_normal(rows)
        cases.append((low, high, A, b))
        excess.append(net.least_excess(np.array(low), np.array(high), A, b))
    least = min(excess)
    said: list[str] = []
    for side in (-1.0, 1.0):  # the least excess of all regions comes a little above 0, then a little below
        moved = [(low, high, A, b + least + side * 0.02) for low, high, A, b in cases]
        (folder / "spec.vnnlib").write_text(property_text(moved))
        said.append(verify_vnnlib(path, folder / "spec.vnnlib", limit).status)
    return said
