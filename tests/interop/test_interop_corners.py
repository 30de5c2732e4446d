"""Walks over the corners of a box: formulas as networks, whose violations are corners that satisfy every clause."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from interop_cases import Graph, vnnlib
from lipgraft.interop import verify_vnnlib
from lipgraft.interop.corners import falsify_corners
from lipgraft.interop.verify import Subject
from lipgraft.interop.vnnlib import read_vnnlib

VARIABLES = 40
Clauses = list[tuple[int, ...]]


def network(path: Path, clauses: Clauses) -> Path:
    """Y_0 = 1 - sum over clauses of relu(1 - sum of literals), Y_1 = sum of min(x, 1 - x)."""
    first = np.zeros((VARIABLES, len(clauses)), np.float32)
    for k, clause in enumerate(clauses):
        for literal in clause:
            first[abs(literal) - 1, k] = -1 if literal > 0 else 1
    shift = np.array([1 - sum(literal < 0 for literal in clause) for clause in clauses], np.float32)
    eye = np.eye(VARIABLES, dtype=np.float32)
    weight = np.concatenate([first, eye, 2 * eye], 1)
    bias = np.concatenate([shift, np.zeros(VARIABLES), -np.ones(VARIABLES)]).astype(np.float32)
    last = np.zeros((len(bias), 2), np.float32)
    last[: len(clauses), 0], last[len(clauses) :, 1] = -1, 1
    last[len(clauses) + VARIABLES :, 1] = -1  # min(x, 1 - x) = x - relu(2 x - 1)
    g = Graph([1, VARIABLES])
    g.add("Gemm", g.last, g.number(weight), g.number(bias))
    g.add("Relu")
    g.add("Gemm", g.last, g.number(last), g.number(np.array([1, 0], np.float32)))
    return g.save(path, [1, 2])


def satisfiable(count: int, seed: int) -> Clauses:
    """Random clauses of three literals that a secret assignment satisfies."""
    rng = np.random.default_rng(seed)
    secret = rng.random(VARIABLES) < 0.5
    out: Clauses = []
    while len(out) < count:
        chosen, signs = rng.permutation(VARIABLES)[:3], rng.random(3) < 0.5
        if (signs == secret[chosen]).any():
            out.append(tuple(int(v + 1) if s else -int(v + 1) for v, s in zip(chosen, signs, strict=True)))
    return out


def property_of(tmp_path: Path) -> Path:
    file = tmp_path / "all.vnnlib"
    file.write_text(vnnlib([0.0] * VARIABLES, [1.0] * VARIABLES, 2, "(>= Y_0 1.0)", "(<= Y_1 0.0)"))
    return file


def test_a_formula_that_few_corners_satisfy_is_sat(tmp_path: Path) -> None:
    clauses = satisfiable(150, seed=0)
    answer = verify_vnnlib(network(tmp_path / "net.onnx", clauses), property_of(tmp_path), 600.0)
    assert (answer.status, answer.method) == ("sat", "corners")
    assert answer.counterexample is not None
    true = {k + 1 if x > 0.5 else -k - 1 for k, x in enumerate(answer.counterexample.x.tolist())}
    assert all(true & set(clause) for clause in clauses)


def test_a_walk_ends_at_the_deadline_and_finds_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    never = [(a, b, c) for a in (1, -1) for b in (2, -2) for c in (3, -3)]
    subject = Subject.read(network(tmp_path / "net.onnx", never))
    [region] = read_vnnlib(property_of(tmp_path)).expand(time.monotonic() + 600)
    for seconds in (-1.0, 0.2):
        until = time.monotonic() + seconds
        assert falsify_corners(subject.network, region, subject.judge, subject.like, until) is None
