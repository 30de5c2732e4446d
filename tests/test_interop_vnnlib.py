"""VNNLIB files are read as what they say, and refused where they say something else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipgraft.interop import VnnlibError, parse_vnnlib, read_vnnlib, robustness_vnnlib

HEAD = """
(declare-const X_0 Real) ; the first input
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(declare-const Y_2 Real)
"""
BOX = """
(assert (<= X_0 0.5)) (assert (>= X_0 -0.5))
(assert (<= X_1 1e-1))
(assert (>= X_1 (- 1)))
"""


def violated(text: str, x: list[float], y: list[float]) -> bool:
    """Whether a specification, as it was read, is violated by inputs x with outputs y."""
    point, out = torch.tensor(x, dtype=torch.float64), torch.tensor([y], dtype=torch.float64)
    inside = [bool(((region.lower <= point) & (point <= region.upper)).all()) for region in parse_vnnlib(text).regions]
    hits = [bool(region.excess(out) <= 0) for region in parse_vnnlib(text).regions]
    return any(a and b for a, b in zip(inside, hits, strict=True))


def test_a_box_is_read_with_its_signs_and_exponents() -> None:
    specification = parse_vnnlib(HEAD + BOX + "(assert (<= Y_0 Y_1))")
    assert (specification.inputs, specification.outputs) == (2, 3)
    [region] = specification.regions
    assert region.lower.tolist() == [-0.5, -1.0]
    assert region.upper.tolist() == [0.5, 0.1]


@pytest.mark.parametrize(
    ("formula", "holds"),
    [
        ("(<= Y_0 Y_1)", lambda a, b, c: a <= b),
        ("(>= Y_0 Y_1)", lambda a, b, c: a >= b),
        ("(<= 0.25 Y_2)", lambda a, b, c: c >= 0.25),
        ("(>= -0.5 Y_2)", lambda a, b, c: c <= -0.5),
        ("(and (<= Y_0 Y_1) (<= Y_0 Y_2))", lambda a, b, c: a <= b and a <= c),
        ("(or (and (<= Y_0 Y_1)) (and (<= Y_0 Y_2)))", lambda a, b, c: a <= b or a <= c),
        ("(or (<= Y_0 Y_1) (and (>= Y_2 0.5) (>= Y_1 0)))", lambda a, b, c: a <= b or (c >= 0.5 and b >= 0)),
        ("(and (or (<= Y_0 0) (<= Y_1 0)) (or (<= Y_2 0) (>= Y_2 1)))",
         lambda a, b, c: (a <= 0 or b <= 0) and (c <= 0 or c >= 1)),
        ("(<= (+ Y_0 (* 2.0 Y_1)) (- Y_2 0.5))", lambda a, b, c: a + 2 * b <= c - 0.5),
        ("(>= (* -1 (+ Y_0 Y_1 Y_2)) (- 0.25))", lambda a, b, c: -(a + b + c) >= -0.25),
        ("(<= (- Y_0) (* Y_1 0.5))", lambda a, b, c: -a <= b * 0.5),
    ],
)  # fmt: skip
def test_a_formula_means_what_it_says(formula: str, holds) -> None:  # type: ignore[no-untyped-def]
    text = HEAD + BOX + f"(assert {formula})"
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for y in torch.randn(60, 3, generator=generator).double().tolist():
        assert violated(text, [0.0, 0.0], y) == holds(*y)
        seen.add(holds(*y))
    assert seen == {True, False}


def test_assertions_are_combined_by_and() -> None:
    text = HEAD + BOX + "(assert (or (<= Y_0 0) (<= Y_1 0)))(assert (>= Y_2 0))(assert (or (<= Y_0 1) (<= Y_1 1)))"
    assert violated(text, [0, 0], [-1, 5, 1])
    assert not violated(text, [0, 0], [-1, 5, -1])
    assert not violated(text, [0, 0], [0.5, 0.5, 1])
    assert len(parse_vnnlib(text).regions[0].disjuncts) == 4


def test_boxes_inside_disjunctions_become_regions() -> None:
    box = "(and (<= X_0 {b}) (>= X_0 {a}) (<= X_1 1) (>= X_1 0) ({op} Y_0 0))"
    cases = [box.format(a=0, b=1, op="<="), box.format(a=2, b=3, op=">="), box.format(a=0, b=1, op=">=")]
    text = HEAD + f"(assert (or {' '.join(cases)}))"
    assert [len(region.disjuncts) for region in parse_vnnlib(text).regions] == [2, 1]
    assert violated(text, [2.5, 0.5], [1, 0, 0])
    assert not violated(text, [2.5, 0.5], [-1, 0, 0])
    assert not violated(text, [1.5, 0.5], [1, 0, 0])


def test_the_tightest_of_several_bounds_counts() -> None:
    [region] = parse_vnnlib(HEAD + BOX + "(assert (<= X_0 0.2))(assert (>= X_0 -9))(assert (<= Y_0 0))").regions
    assert (region.lower[0], region.upper[0]) == (-0.5, 0.2)


def test_gzipped_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.vnnlib.gz"
    path.write_bytes(gzip.compress((HEAD + BOX + "(assert (<= Y_0 0))").encode()))
    assert read_vnnlib(path).inputs == 2


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5), st.integers(2, 4))
def test_a_written_box_is_read_back_to_the_last_bit(values: list[float], outputs: int) -> None:
    lower = torch.tensor(values)
    [region] = parse_vnnlib(robustness_vnnlib(lower, lower + 0.1, 1, outputs)).regions
    assert torch.equal(region.lower.float(), lower)
    assert torch.equal(region.upper.float(), lower + 0.1)
    assert len(region.disjuncts) == outputs - 1


BROKEN = {
    "a bracket too few": (HEAD + BOX + "(assert (<= Y_0 Y_1)", "truncated"),
    "a bracket too many": (HEAD + BOX + "(assert (<= Y_0 Y_1)))", "never opened"),
    "a contradictory box": (HEAD + BOX + "(assert (>= X_0 0.6))(assert (<= Y_0 0))", "X_0 must be at least 0.6"),
    "a contradiction in a case": (
        HEAD + BOX + "(assert (or (and (<= Y_0 0) (>= X_1 5)) (<= Y_1 0)))", "contradicts itself: X_1"),
    "a missing bound": (HEAD + "(assert (<= X_0 1))(assert (>= X_0 0))(assert (<= X_1 1))(assert (<= Y_0 0))",
        "X_1 no lower bound"),
    "an undeclared input": (HEAD + BOX + "(assert (<= X_2 1))(assert (>= X_2 0))(assert (<= Y_0 0))", "X_2"),
    "an undeclared output": (HEAD + BOX + "(assert (<= Y_3 0))", "Y_3"),
    "a gap in the numbers": ("(declare-const X_1 Real)(declare-const Y_0 Real)", "X_0"),
    "a variable declared twice": (HEAD + "(declare-const X_0 Real)", "twice"),
    "a foreign variable": (HEAD + "(declare-const Z_0 Real)", "Z_0"),
    "a variable that is not real": (HEAD + "(declare-const Y_3 Int)", "Int"),
    "nothing about outputs": (HEAD + BOX, "nothing of the outputs"),
    "a product of outputs": (HEAD + BOX + "(assert (<= (* Y_0 Y_1) 0))", "nonlinear"),
    "a square of an input": (HEAD + BOX + "(assert (<= (* X_0 X_0) 0.1))(assert (<= Y_0 0))", "nonlinear"),
    "a function": (HEAD + BOX + "(assert (<= (sin Y_0) 0))", "not linear"),
    "a division": (HEAD + BOX + "(assert (<= (/ 1 Y_0) 0))", "not linear"),
    "inputs compared with outputs": (HEAD + BOX + "(assert (<= X_0 Y_0))", "not supported"),
    "inputs compared with each other": (HEAD + BOX + "(assert (<= X_0 X_1))(assert (<= Y_0 0))", "not supported"),
    "a comparison of numbers": (HEAD + BOX + "(assert (<= 0 1))", "no variable"),
    "a strict comparison": (HEAD + BOX + "(assert (< Y_0 0))", "not supported"),
    "a negation": (HEAD + BOX + "(assert (not (<= Y_0 0)))", "not supported"),
    "an empty disjunction": (HEAD + BOX + "(assert (or))", "not supported"),
    "a comparison of one side": (HEAD + BOX + "(assert (<= Y_0))", "two sides"),
    "a number that is none": (HEAD + BOX + "(assert (<= Y_0 0.5.5))", "neither a number"),
    "not a number": (HEAD + BOX + "(assert (<= Y_0 nan))", "neither a number"),
    "an infinite bound": (HEAD + BOX + "(assert (<= X_0 1e999))(assert (<= Y_0 0))", "not finite"),
    "an infinite constant": (HEAD + BOX + "(assert (<= Y_0 1e999))", "not finite"),
    "a foreign command": (HEAD + BOX + "(declare-network N)", "declare-network"),
    "an assertion of nothing": (HEAD + BOX + "(assert)", "one formula"),
    "loose words": (HEAD + BOX + "hello", "hello"),
    "an empty file": ("", "X_0"),
    "too many cases": (HEAD + BOX + "(assert (or (<= Y_0 0) (<= Y_1 0)))" * 20, "cases"),
    "too many brackets": (HEAD + BOX + "(" * 2000, "nests"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_specification_is_an_error_that_says_why(what: str) -> None:
    text, reason = BROKEN[what]
    with pytest.raises(VnnlibError, match=reason):
        parse_vnnlib(text)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x1f\x8b not gzip", gzip.compress(b"(assert", mtime=0)[:-6]])
def test_a_file_that_is_no_text_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.vnnlib"
    path.write_bytes(content)
    with pytest.raises(VnnlibError, match=r"a\.vnnlib"):
        read_vnnlib(path)


def test_a_file_cut_anywhere_is_an_error_or_still_whole() -> None:
    text = (HEAD + BOX + "(assert (or (and (<= Y_0 Y_1)) (and (<= Y_0 Y_2))))").strip()
    for length in range(len(text)):
        with pytest.raises(VnnlibError):
            parse_vnnlib(text[:length])
