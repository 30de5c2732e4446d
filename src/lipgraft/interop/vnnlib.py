"""Reading VNNLIB 1.0: declarations and assertions become boxes with forbidden outputs."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import re
import zlib
from pathlib import Path

from lipgraft.interop.clauses import Clause, clauses_of, regions_of
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.linear import COMPARISONS, NUMBER, Variable, variable
from lipgraft.interop.sexpr import Expression, parse, show
from lipgraft.interop.specification import Specification

# Commands of the underlying SMT language that say nothing about the property.
IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
MOST_CLAUSES = 100_000

# Nearly all lines of a file are declarations and bounds of single inputs; they need no general parser.
_DECLARATION = re.compile(r"\(declare-const ([XY])_(\d+) Real\)", re.ASCII)
_BOUND = re.compile(rf"\(assert \(([<>]=) X_(\d+) ({NUMBER})\)\)", re.ASCII)
_COMMENT = re.compile(r";[^\n]*")


def read_vnnlib(path: str | os.PathLike[str]) -> Specification:
    """The specification in a .vnnlib file, or in a gzip of one."""
    file = Path(path)
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        raise VnnlibError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    except UnicodeDecodeError:
        raise VnnlibError(f"{file} is not a text file.") from None
    return parse_vnnlib(text, str(file))


def parse_vnnlib(text: str, where: str = "the specification") -> Specification:
    """The specification in a text. Everything that is not understood is an error: nothing is left out silently."""
    declared: dict[Variable, None] = {}
    common = Clause()
    choices: list[list[Clause]] = []
    for command in parse(_simple_lines(text, declared, common, where), where):
        if isinstance(command, str) or not command or not isinstance(command[0], str):
            raise VnnlibError(f"{where}: {show(command)} is not a command such as (assert ...).")
        match command[0]:
            case "declare-const" | "declare-fun":
                _declare(_declaration(command, where), declared, where)
            case "assert":
                _assert(command, common, choices, where)
            case known if known not in IGNORED:
                raise VnnlibError(f"{where}: the command {show(command)} is not part of VNNLIB 1.0.")
    inputs, outputs = (_count(declared, kind, where) for kind in "XY")
    total = math.prod(len(choice) for choice in choices)
    if total > MOST_CLAUSES:
        raise VnnlibError(f"{where} combines disjunctions into {total} cases; at most {MOST_CLAUSES} are supported.")
    cases = [Clause.joined(common, chosen) for chosen in itertools.product(*choices)]
    return Specification(inputs, outputs, regions_of(cases, inputs, outputs, where))


def _simple_lines(text: str, declared: dict[Variable, None], common: Clause, where: str) -> str:
    """Take declarations and bounds of single inputs out of the text; what is left is for the general parser."""

    def declare(match: re.Match[str]) -> str:
        _declare((match[1], int(match[2])), declared, where)
        return ""

    def bound(match: re.Match[str]) -> str:
        value = float(match[3])
        if not math.isfinite(value):
            raise VnnlibError(f"{where}: {match[0]} contains a number that is not finite.")
        common.bound(int(match[2]), 1.0 if match[1] == "<=" else -1.0, value)
        return ""

    return _BOUND.sub(bound, _DECLARATION.sub(declare, _COMMENT.sub("", text)))


def _declare(name: Variable, declared: dict[Variable, None], where: str) -> None:
    if name in declared:
        raise VnnlibError(f"{where} declares {name[0]}_{name[1]} twice.")
    declared[name] = None


def _assert(command: list[Expression], common: Clause, choices: list[list[Clause]], where: str) -> None:
    if len(command) != 2 or isinstance(command[1], str) or not command[1]:
        raise VnnlibError(f"{where}: {show(command)} must assert one formula.")
    formula = command[1]
    if formula[0] in COMPARISONS:
        common.add(formula, where)
        return
    cases = clauses_of(formula, where, MOST_CLAUSES)
    if len(cases) == 1:
        common.update(cases[0])
    else:
        choices.append(cases)


def _declaration(command: list[Expression], where: str) -> Variable:
    """(declare-const X_0 Real) or (declare-fun X_0 () Real)."""
    sort: list[Expression] = ["Real"] if command[0] == "declare-const" else [[], "Real"]
    name = variable(command[1]) if len(command) > 1 and isinstance(command[1], str) else None
    if name is None or command[2:] != sort:
        raise VnnlibError(f"{where}: {show(command)} must declare a real variable X_i or Y_i.")
    return name


def _count(declared: dict[Variable, None], kind: str, where: str) -> int:
    numbers = {number for letter, number in declared if letter == kind}
    missing = next((i for i in range(len(numbers)) if i not in numbers), None)
    if not numbers or missing is not None:
        raise VnnlibError(
            f"{where} does not declare {kind}_{missing or 0}; variables are numbered from 0 without gaps."
        )
    return len(numbers)
