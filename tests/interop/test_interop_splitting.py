"""Halving boxes: mixtures of rows, cuts where they help, and never a proof of what happens."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interop_cases import Graph, vnnlib
from lipgraft.bounds.memory import never
from lipgraft.interop import Conjunction, Region, parse_vnnlib, splitting
from lipgraft.interop.splitting import split_inputs
from lipgraft.interop.verify import Subject
from lipgraft.network import Network, evaluate


def network(path: Path, inputs: int, outputs: int, seed: int) -> Path:
    g = Graph([1, inputs])
    g.rng = np.random.default_rng(seed)
    g.add("Gemm", g.last, g.random(inputs, 12, scale=1.0), g.random(12))
    g.add("Relu")
    g.add("Gemm", g.last, g.random(12, 12, scale=0.6), g.random(12))
    g.add("Relu")
    g.add("Gemm", g.last, g.random(12, outputs, scale=0.6), g.random(outputs))
    return g.save(path, [1, outputs])


def test_rows_that_exclude_each_other_are_proved_without_a_cut(tmp_path: Path) -> None:
    """Y_0 = s, Y_1 = -s: each may be 0.5, both may not, and only their sum shows it at once."""
    g = Graph([1, 2])
    g.add("MatMul", g.last, g.number(np.array([[0.5, -0.5], [0.5, -0.5]], np.float32)))
    subject = Subject.read(g.save(tmp_path / "net.onnx", [1, 2]))
    text = vnnlib([-1.0, -1.0], [1.0, 1.0], 2, "(>= Y_0 0.5)", "(>= Y_1 0.5)")
    split = split_inputs(subject.exact, parse_vnnlib(text).expand(math.inf), subject.judge, math.inf, sound=True)
    assert (split.status, split.boxes) == ("unsat", 1)


@pytest.mark.parametrize("seed", range(6))
def test_what_some_input_does_is_never_proved_impossible(seed: int, tmp_path: Path) -> None:
    """Disjuncts of several rows that all hold with nothing to spare at one hidden point."""
    subject = Subject.read(network(tmp_path / "net.onnx", 3, 4, seed))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        y = subject.judge(torch.rand(1, 3, generator=generator) * 2 - 1).double()[0]
    disjuncts = []
    for hidden in (False, True):
        A = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        disjuncts.append(Conjunction(A, A @ y + (1e-9 if hidden else -50.0)))
    ends = torch.ones(3, dtype=torch.float64)
    region = Region(-ends, ends, tuple(disjuncts))
    soon = time.monotonic() + 2.0
    split = split_inputs(subject.exact, iter([region]), subject.judge, soon, sound=True)
    assert split.status != "unsat"


@pytest.mark.parametrize("seed", range(3))
def test_regions_on_one_pile_get_the_words_that_they_get_alone(seed: int, tmp_path: Path) -> None:
    """Rows and disjuncts of different numbers; a region that is violated is found among the others."""
    subject = Subject.read(network(tmp_path / "net.onnx", 2, 3, seed))
    generator = torch.Generator().manual_seed(seed)
    regions = []
    for i in range(6):
        low = torch.rand(2, generator=generator, dtype=torch.float64)
        high = low + 0.2
        with torch.no_grad():
            y = subject.judge((low + high).float()[None] / 2).double()[0]
        parts = []
        for rows in range(1, 2 + i % 3):
            A = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
            away = 0.0 if i == 4 and rows == 1 else -8.0 * A.abs().sum(1)
            parts.append(Conjunction(A, A @ y + away))
        regions.append(Region(low, high, tuple(parts)))

    def word(some: list[Region]) -> str:
        return split_inputs(subject.exact, iter(some), subject.judge, math.inf, sound=True).status

    alone = [word([region]) for region in regions]
    assert alone == ["unsat"] * 4 + ["sat", "unsat"]
    assert word(regions) == "sat"
    assert word(regions[:4] + regions[5:]) == "unsat"


def test_what_a_line_excludes_is_clipped_off(tmp_path: Path) -> None:
    """Inputs that must be 0 or 1, and clauses of them that contradict each other: each cut settles an input."""
    n = 9  # neighbours in a ring differ, and the ring is odd
    ring = [(i, (i + 1) % n) for i in range(n)]
    clauses = [{i: sign, j: sign} for i, j in ring for sign in (1, -1)]
    W, b = np.zeros((n + len(clauses), n), np.float32), np.zeros(n + len(clauses), np.float32)
    W[:n], b[:n] = 2 * np.eye(n), -1  # relu(2 x - 1)
    for row, clause in enumerate(clauses, start=n):  # relu(1 - the literals that are true)
        b[row] = 1 - sum(sign < 0 for sign in clause.values())
        for variable, sign in clause.items():
            W[row, variable] = -sign
    g = Graph([1, n])
    g.add("Gemm", g.last, g.number(np.concatenate([W, np.eye(n, dtype=np.float32)]).T.copy()),
          g.number(np.concatenate([b, np.zeros(n, np.float32)])))  # fmt: skip
    g.add("Relu")
    out = np.zeros((2 * n + len(clauses), 2), np.float32)
    out[n : n + len(clauses), 0] = 1  # clauses that do not hold
    out[:n, 1], out[n + len(clauses) :, 1] = -1, 1  # the sum of x - relu(2 x - 1), the distances from 0 or 1
    g.add("MatMul", g.last, g.number(out))
    subject = Subject.read(g.save(tmp_path / "net.onnx", [1, 2]))
    text = vnnlib([0.0] * n, [1.0] * n, 2, "(<= Y_0 0)", "(<= Y_1 0)")
    split = split_inputs(subject.exact, parse_vnnlib(text).expand(math.inf), subject.judge, math.inf, sound=True)
    assert split.status == "unsat"
    assert split.boxes < 60, "without clipping it takes 275"


def test_boxes_that_do_not_fit_the_memory_are_bounded_in_smaller_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject.read(network(tmp_path / "net.onnx", 3, 2, 0))
    text = vnnlib([-1.0] * 3, [1.0] * 3, 2, "(>= Y_0 2.0)")

    def split() -> tuple[str, int]:
        regions = parse_vnnlib(text).expand(math.inf)
        found = split_inputs(subject.exact, regions, subject.judge, math.inf, sound=True)
        return found.status, found.boxes

    expected, bounded, sizes = split(), splitting._bounded, []

    def small(network: Network, boxes: splitting._Boxes, *rest: Any) -> Any:
        sizes.append(len(boxes.asked))
        if len(boxes.asked) > 2:
            raise torch.OutOfMemoryError
        return bounded(network, boxes, *rest)

    monkeypatch.setattr(splitting, "_bounded", small)
    assert split() == expected
    assert max(sizes) > 2


@pytest.mark.parametrize("seed", range(4))
def test_clipping_keeps_every_point_at_which_a_disjunct_holds(seed: int, tmp_path: Path) -> None:
    """On small boxes, where networks are almost linear, so that the lines leave next to nothing to spare."""
    subject = Subject.read(network(tmp_path / "net.onnx", 3, 4, seed))
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(40, 3, generator=generator, dtype=torch.float64) * 2 - 1
    regions, points = [], []
    for centre in centres:
        inside = centre + 0.05 * (torch.rand(3000, 3, generator=generator, dtype=torch.float64) * 2 - 1)
        inside[::3] = centre + 0.05 * (
            torch.randint(0, 3, (1000, 3), generator=generator).double() - 1
        )  # corners, faces
        y = evaluate(subject.exact, inside)[subject.exact.output]
        disjuncts = []
        for _ in range(2):
            A = torch.randn(2, 4, generator=generator, dtype=torch.float64)
            disjuncts.append(Conjunction(A, (y @ A.T).quantile(0.1, dim=0)))
        regions.append(Region(centre - 0.05, centre + 0.05, tuple(disjuncts)))
        held = torch.stack([(y @ part.A.T <= part.b).all(1) for part in disjuncts]).any(0)
        points.append(inside[held])
    questions = splitting._Questions.of(regions, subject.exact)
    with torch.no_grad():
        worst, _, _, clipped = splitting._bounded(subject.exact, questions.boxes(), questions, True, never)
    lost = questions.upper - questions.lower - (clipped.upper - clipped.lower)
    assert int((lost > 0.01).any(1).sum()) >= 10, "many boxes are clipped"
    for i, held in enumerate(points):
        assert ((clipped.lower[i] <= held) & (held <= clipped.upper[i])).all()
        assert len(held) == 0 or worst[i] <= 0


def test_no_batch_is_empty_where_clipping_leaves_nothing_to_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y_0 = |3 x - 1|, which is never below 0: the only box shrinks around 1/3 at once."""
    g = Graph([1, 1])
    g.add("Gemm", g.last, g.number(np.array([[3.0, -3.0]], np.float32)), g.number(np.array([-1.0, 1.0], np.float32)))
    g.add("Relu")
    g.add("MatMul", g.last, g.number(np.array([[1.0], [1.0]], np.float32)))
    subject = Subject.read(g.save(tmp_path / "net.onnx", [1, 1]))
    bounded, sizes = splitting._bounded, []

    def counted(network: Network, boxes: splitting._Boxes, *rest: Any) -> Any:
        sizes.append(len(boxes.asked))
        return bounded(network, boxes, *rest)

    monkeypatch.setattr(splitting, "_bounded", counted)
    regions = parse_vnnlib(vnnlib([0.0], [1.0], 1, "(<= Y_0 -0.0000001)")).expand(math.inf)
    split = split_inputs(subject.exact, regions, subject.judge, math.inf, sound=True)
    assert split.status != "sat"
    assert min(sizes) > 0
