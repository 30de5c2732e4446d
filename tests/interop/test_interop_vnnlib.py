"""VNNLIB files are read as what they say, and refused where they say something else."""

from __future__ import annotations

import gzip
import math
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipgraft.interop import VnnlibError, parse_vnnlib, read_vnnlib, robustness_vnnlib
from lipgraft.interop.clock import OutOfTime

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


@pytest.mark.parametrize(
    "hidden",
    [
        '(set-info :source "{}")',
        "(set-info :source |{}|)",
        "; {}\n",
        "; {}\r",
        '(set-info :source "|") (set-info :note "; {}")',
        '(set-info :source "a "" quoted word, then {}")',
    ],
)
@pytest.mark.parametrize("what", ["(assert (<= X_0 -0.4))", "(assert (<= X_0 -0.4))(declare-const X_2 Real)", ")", "("])
def test_what_stands_in_comments_and_strings_says_nothing(hidden: str, what: str) -> None:
    text = HEAD + hidden.format(what) + BOX + "(assert (<= Y_0 0))"
    specification = parse_vnnlib(text)
    assert specification.inputs == 2
    [region] = specification.regions
    assert (region.lower.tolist(), region.upper.tolist()) == ([-0.5, -1.0], [0.5, 0.1])


def test_a_quote_in_a_comment_hides_nothing_that_follows() -> None:
    text = HEAD + BOX + '; it says "so\n(assert (<= X_0 0.2)) ; and | more\n(assert (<= Y_0 0)) ; so" and |'
    [region] = parse_vnnlib(text).regions
    assert region.upper[0] == 0.2


def test_a_quoted_symbol_is_the_same_symbol_and_declarations_may_be_spread_over_lines() -> None:
    text = HEAD + BOX + "(assert\t(<= |X_0|\r\n 0.2))(|assert| (<= |Y_0| 0))"
    [region] = parse_vnnlib(text).regions
    assert region.upper[0] == 0.2


@pytest.mark.parametrize(
    ("formula", "regions"),
    [
        ("(or)", 0),
        ("(or (or) (and (<= Y_0 0) (or)))", 0),
        ("(or (<= Y_0 0) (or))", 1),
        ("(or (<= Y_0 0) (and (<= Y_1 0) (>= X_1 5)))", 1),  # no input is in the second box
        ("(and)", 1),
        ("(or (and) (<= Y_0 0))", 1),
    ],
)
def test_empty_parts_of_formulas_mean_what_logic_says(formula: str, regions: int) -> None:
    assert len(parse_vnnlib(HEAD + BOX + f"(assert {formula})(assert (<= Y_2 0))").regions) == regions


def test_an_empty_conjunction_is_true_of_every_output() -> None:
    text = HEAD + BOX + "(assert (or (<= Y_0 0) (and)))"
    assert violated(text, [0, 0], [1, 1, 1])


def test_cases_are_made_one_by_one() -> None:
    """2^60 cases, of which the first are there at once."""
    pair = "(assert (or (and (<= Y_0 {i}) (<= X_0 0.{i:02d}5)) (<= Y_1 {i})))"
    specification = parse_vnnlib(HEAD + BOX + "".join(pair.format(i=i) for i in range(60)))
    first = next(specification.expand(math.inf))
    assert float(first.upper[0]) == 0.005
    assert len(first.disjuncts) <= 1024


@pytest.mark.long
def test_many_cases_of_one_box_are_regions_of_a_bounded_size() -> None:
    choice = "(or " + " ".join(f"(<= Y_{{0}} {i})" for i in range(60)) + ")"
    text = HEAD + BOX + "".join(f"(assert {choice.format(k)})" for k in (0, 1))
    regions = parse_vnnlib(text).regions
    assert sum(len(region.disjuncts) for region in regions) == 3600
    assert max(len(region.disjuncts) for region in regions) <= 1024
    assert violated(text, [0, 0], [59, 59, 0])
    assert not violated(text, [0, 0], [59, 60, 0])


@pytest.mark.long
def test_reading_stops_at_the_deadline() -> None:
    text = HEAD + BOX + "(assert (or " + "(<= Y_0 0)" * 50_000 + "))"
    with pytest.raises(OutOfTime):
        parse_vnnlib(text, deadline=time.monotonic() - 1)
    specification = parse_vnnlib(text)
    with pytest.raises(OutOfTime):
        next(specification.expand(time.monotonic() - 1))


BROKEN = {
    "a bracket too few": (HEAD + BOX + "(assert (<= Y_0 Y_1)", "truncated"),
    "a bracket too many": (HEAD + BOX + "(assert (<= Y_0 Y_1)))", "never opened"),
    "a contradictory box": (HEAD + BOX + "(assert (>= X_0 0.6))(assert (<= Y_0 0))", "X_0 must be at least 0.6"),
    "a contradiction in every case": (
        HEAD + BOX + "(assert (or (and (<= Y_0 0) (>= X_1 5)) (and (<= Y_1 0) (<= X_0 -9))))",
        "contradicts itself: X_1"),
    "a missing bound": (HEAD + "(assert (<= X_0 1))(assert (>= X_0 0))(assert (<= X_1 1))(assert (<= Y_0 0))",
        "X_1 no lower bound"),
    "an undeclared input": (HEAD + BOX + "(assert (<= X_2 1))(assert (>= X_2 0))(assert (<= Y_0 0))", "X_2"),
    "an undeclared output": (HEAD + BOX + "(assert (<= Y_3 0))", "Y_3"),
    "a gap in the numbers": ("(declare-const X_1 Real)(declare-const Y_0 Real)", "X_0"),
    "a variable declared twice": (HEAD + "(declare-const X_0 Real)", "twice"),
    "a foreign variable": (HEAD + "(declare-const Z_0 Real)", "Z_0"),
    "a variable that is not real": (HEAD + "(declare-const Y_3 Int)", "Int"),
    "nothing about outputs": (HEAD + BOX, "nothing about the outputs"),
    "a product of outputs": (HEAD + BOX + "(assert (<= (* Y_0 Y_1) 0))", "nonlinear"),
    "a square of an input": (HEAD + BOX + "(assert (<= (* X_0 X_0) 0.1))(assert (<= Y_0 0))", "nonlinear"),
    "a function": (HEAD + BOX + "(assert (<= (sin Y_0) 0))", "not linear"),
    "a division": (HEAD + BOX + "(assert (<= (/ 1 Y_0) 0))", "not linear"),
    "inputs compared with outputs": (HEAD + BOX + "(assert (<= X_0 Y_0))", "not supported"),
    "inputs compared with each other": (HEAD + BOX + "(assert (<= X_0 X_1))(assert (<= Y_0 0))", "not supported"),
    "a comparison of numbers": (HEAD + BOX + "(assert (<= 0 1))", "no variable"),
    "a strict comparison": (HEAD + BOX + "(assert (< Y_0 0))", "not supported"),
    "a negation": (HEAD + BOX + "(assert (not (<= Y_0 0)))", "not supported"),
    "a string in place of a formula": (HEAD + BOX + '(assert "(<= Y_0 0)")', "not a formula"),
    "a string that never ends": (HEAD + BOX + '(assert (<= Y_0 0))(set-info :source "never ends)', "inside a string"),
    "a quoted symbol that never ends": (HEAD + BOX + "(assert (<= |Y_0 0))", "inside a quoted symbol"),
    "a quoted number": (HEAD + BOX + "(assert (<= Y_0 |0.5|))", "neither a number"),
    "a number with a zero in front": (HEAD + BOX + "(assert (<= Y_00 0))", "neither a number"),
    "a number of 5,000 digits": (HEAD + BOX + f"(assert (<= Y_{'1' * 5000} 0))", "neither a number"),
    "something after the end": (HEAD + BOX + "(assert (<= Y_0 0))(exit)(assert (<= Y_0 1))", "after .exit."),
    "a comparison of one side": (HEAD + BOX + "(assert (<= Y_0))", "two sides"),
    "a number that is none": (HEAD + BOX + "(assert (<= Y_0 0.5.5))", "neither a number"),
    "not a number": (HEAD + BOX + "(assert (<= Y_0 nan))", "neither a number"),
    "an infinite bound": (HEAD + BOX + "(assert (<= X_0 1e999))(assert (<= Y_0 0))", "not finite"),
    "an infinite constant": (HEAD + BOX + "(assert (<= Y_0 1e999))", "not finite"),
    "a foreign command": (HEAD + BOX + "(declare-network N)", "declare-network"),
    "an assertion of nothing": (HEAD + BOX + "(assert)", "one formula"),
    "loose words": (HEAD + BOX + "hello", "hello"),
    "an empty file": ("", "X_0"),
    "too many conditions": (
        HEAD + BOX + "".join(f"(assert (<= (+ Y_0 (* {i + 2} Y_1)) 0))" for i in range(3000)), "3000 conditions"),
    "too many brackets": (HEAD + BOX + "(" * 2000, "nests"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_specification_is_an_error_that_says_why(what: str) -> None:
    text, reason = BROKEN[what]
    with pytest.raises(VnnlibError, match=reason):
        parse_vnnlib(text).regions  # noqa: B018


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


def test_a_gzip_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipgraft.interop.vnnlib.LARGEST", 1 << 20)
    path = tmp_path / "a.vnnlib.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 21)))
    with pytest.raises(VnnlibError, match="too large"):
        read_vnnlib(path)


def test_a_byte_order_mark_is_no_word(tmp_path: Path) -> None:
    path = tmp_path / "a.vnnlib"
    path.write_text("\ufeff" + HEAD + BOX + "(assert (<= Y_0 0))", encoding="utf-8")
    assert read_vnnlib(path).inputs == 2
