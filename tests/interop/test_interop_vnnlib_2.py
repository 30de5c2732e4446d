"""VNNLIB 2.0 says the same as 1.0 in other words, and both are read in time linear in their size."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from interop_cases import Graph, two_sides, vnnlib
from lipgraft.interop import Specification, VnnlibError, parse_vnnlib, verify_vnnlib

FORMULAS = (
    "(or (and (>= Y_0 0.1) (>= Y_1 0.1)) (and (>= Y_0 0.2) (>= (- Y_1 Y_0) 0.1)))",
    "(<= (+ Y_0 (* 2 Y_1)) -0.1)",
    "(or (and (>= X_0 0.5) (<= Y_0 Y_1)) (and (<= X_2 -0.5) (>= Y_0 Y_1)))",
)


def second(text: str, inputs: int, outputs: int) -> str:
    """A text of version 1.0 in version 2.0, the input as a column, the output as a row."""
    head = (
        "(vnnlib-version <2.0>)\n(declare-network N\n"
        f"  (declare-input X float32 [{inputs}, 1])\n  (declare-output Out float32 [1, {outputs}])\n)\n"
    )
    body = "\n".join(line for line in text.splitlines() if "declare" not in line)
    return head + re.sub(r"Y_(\d+)", r"Out[0, \1]", re.sub(r"X_(\d+)", r"X[\1,0]", body))


def assert_same(one: Specification, other: Specification) -> None:
    assert (one.inputs, one.outputs) == (other.inputs, other.outputs)
    for region, twin in zip(one.regions, other.regions, strict=True):
        assert torch.equal(region.lower, twin.lower)
        assert torch.equal(region.upper, twin.upper)
        for disjunct, again in zip(region.disjuncts, twin.disjuncts, strict=True):
            assert torch.equal(disjunct.A, again.A)
            assert torch.equal(disjunct.b, again.b)


@pytest.mark.parametrize("formula", FORMULAS)
def test_both_versions_of_a_property_are_read_as_the_same_regions(formula: str) -> None:
    text = vnnlib([-1.0, -0.5, -1.0], [1.0, 0.5, 1.0], 2, formula)
    assert_same(parse_vnnlib(text), parse_vnnlib(second(text, 3, 2)))


@pytest.mark.parametrize(("formula", "word"), [("(>= Y_0 0.9)", "sat"), ("(>= Y_0 1.01)", "unsat")])
def test_both_versions_get_the_same_answer_and_counterexamples_have_the_names_of_the_file(
    formula: str, word: str, tmp_path: Path
) -> None:
    net = two_sides(tmp_path / "net.onnx", 3)
    first = vnnlib([-1.0] * 3, [1.0] * 3, 2, formula)
    texts = []
    for name, text in (("one", first), ("two", second(first, 3, 2))):
        (tmp_path / f"{name}.vnnlib").write_text(text)
        assert verify_vnnlib(net, tmp_path / f"{name}.vnnlib", 600.0, results=tmp_path / name).status == word
        texts.append((tmp_path / name).read_text())
    again = re.sub(r"X\[(\d),0\]", r"X_\1", re.sub(r"Out\[0,(\d)\]", r"Y_\1", texts[1]))
    assert again == texts[0]
    assert ("Out[0,1]" in texts[1]) == (word == "sat")


def test_equality_fixes_an_input() -> None:
    text = second(vnnlib([-1.0], [1.0], 1, "(<= Y_0 0)"), 1, 1) + "(assert (== X[0,0] 0.25))"
    [region] = parse_vnnlib(text).regions
    assert (region.lower.tolist(), region.upper.tolist()) == ([0.25], [0.25])


GOOD = second(vnnlib([-1.0, -1.0], [1.0, 1.0], 1, "(<= Y_0 0)"), 2, 1)
WRONG = {
    "another version": (GOOD.replace("<2.0>", "<3.0>"), "only versions"),
    "no place": (GOOD.replace("X[1,0]", "X[2,0]"), "is not an index of X"),
    "too few axes": (GOOD.replace("X[1,0]", "X[1]"), "is not an index of X"),
    "an unknown name": (GOOD.replace("Out[0, 0] 0", "Other[0] 0"), "neither a number nor a variable"),
    "two networks": (GOOD + "(declare-network M (declare-input Z real [1]) (declare-output W real [1]))", "several"),
    "a declaration of version 1.0": (GOOD + "(declare-const X_0 Real)", "not part of VNNLIB 2.0"),
    "a network in version 1.0": (GOOD.replace("(vnnlib-version <2.0>)", ""), "not part of VNNLIB 1.0"),
    "whole numbers": (GOOD.replace("X float32", "X int8"), "only real, float32"),
    "a strict comparison": (GOOD + "(assert (< Out[0,0] 1))", "is not supported"),
    "an open bracket": (GOOD + "(assert (<= Out[0 1))", "square brackets"),
    "no comma": (GOOD.replace("X[1,0]", "X[1 0]"), "is not an index of X"),
    "a comma at the end": (GOOD.replace("X[1,0]", "X[1,]"), "is not an index of X"),
    "a comma alone": (GOOD.replace("X[1,0]", "X[,]"), "is not an index of X"),
    "an index of 5,000 digits": (GOOD.replace("X[1,0]", f"X[{'1' * 5000},0]"), "is not an index of X"),
    "an index that is no number": (GOOD.replace("X[1,0]", "X[one,0]"), "is not an index of X"),
    **{f"the shape {shape}": (GOOD.replace("[2, 1]", shape), "is not a shape")
       for shape in ("[2 1]", "[2,]", "[,]", "[2,,1]", "[-2, 1]", f"[{'1' * 5000}]", "2")},
    "names of version 1.0": (GOOD.replace("X[1,0]", "X_1"), "'X_1' is neither a number nor a variable"),
    "names of version 1.0 before the network": (
        GOOD.replace("(declare-network", "(assert (>= Y_0 5))(declare-network"), "'Y_0' .* before this assertion"),
    "the network after the assertions": (GOOD.splitlines()[0] + "(assert (>= X[0,0] 0))", "before this assertion"),
    "the version after assertions": ("(assert (>= Y_0 5))" + GOOD, "comes after commands of version 1.0"),
    "two inputs": (GOOD.replace("(declare-output Out", "(declare-input Out"), "one input and one output"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_understood_is_an_error(what: str) -> None:
    text, words = WRONG[what]
    with pytest.raises(VnnlibError, match=words):
        parse_vnnlib(text)


def calls(text: str) -> int:
    """How many functions are called while a text is read and its first region is made."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        next(parse_vnnlib(text).expand(float("inf")))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["inputs", "disjuncts", "boxes"])
def test_reading_takes_steps_in_proportion_to_the_size(kind: str, version: int) -> None:
    def text(n: int) -> str:
        inputs, cases = (n, 1) if kind == "inputs" else (2, n)
        box = "(<= X_0 {0}) " if kind == "boxes" else ""
        formula = " ".join(f"(and {box.format(i / n)}(>= Y_0 {i}.5))" for i in range(cases))
        whole = vnnlib([0.0] * inputs, [1.0] * inputs, 1, f"(or {formula} (>= Y_0 9))")
        return second(whole, inputs, 1) if version == 2 else whole

    small, middle, large = (calls(text(n)) for n in (100, 200, 400))
    assert large - middle < 2.2 * (middle - small)


def ends_in(kind: str, path: Path) -> Path:
    g = Graph([1, 2])
    g.add("Gemm", g.last, g.number(np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)), g.random(2))
    g.add("Relu")
    g.add(kind, axis=-1)
    return g.save(path, [1, 2])


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_a_final_softmax_is_left_out_where_only_the_order_of_outputs_counts(kind: str, tmp_path: Path) -> None:
    net, spec = ends_in(kind, tmp_path / "net.onnx"), tmp_path / "spec.vnnlib"
    words = {}
    for name, low, high in (("sat", -1.0, 1.0), ("unsat", 2.0, 3.0)):
        spec.write_text(vnnlib([low, low], [high, high], 2, "(>= Y_0 Y_1)"))
        answer = verify_vnnlib(net, spec, 600.0)
        words[name] = answer.status
        assert kind in (answer.note or "")
    assert words == {"sat": "sat", "unsat": "unsat"}


def test_a_final_softmax_is_an_error_where_a_property_asks_for_more(tmp_path: Path) -> None:
    net, spec = ends_in("Softmax", tmp_path / "net.onnx"), tmp_path / "spec.vnnlib"
    spec.write_text(vnnlib([0.0, 0.0], [1.0, 1.0], 2, "(>= Y_0 0.9)"))
    with pytest.raises(VnnlibError, match="export it without Softmax"):
        verify_vnnlib(net, spec, 600.0)


def test_hundreds_of_regions_are_decided_together(tmp_path: Path) -> None:
    """Y_0 = relu(mean of X): one region of many, in the last place, is violated."""
    net, spec = two_sides(tmp_path / "net.onnx", 2), tmp_path / "spec.vnnlib"

    def text(last: float) -> str:
        limits = [*((i + 1) / 300 + 1e-3 for i in range(299)), last]
        cases = (
            f"(and (>= X_0 {i / 300}) (<= X_0 {(i + 1) / 300}) (>= X_1 {i / 300}) (<= X_1 {(i + 1) / 300})"
            f" (>= Y_0 {limit}))"
            for i, limit in enumerate(limits)
        )
        return vnnlib([0.0, 0.0], [1.0, 1.0], 2, f"(or {' '.join(cases)})")

    for last, word in ((1.001, "unsat"), (0.9999, "sat")):
        spec.write_text(text(last))
        assert verify_vnnlib(net, spec, 600.0).status == word
