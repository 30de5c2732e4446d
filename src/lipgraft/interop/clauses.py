"""Formulas of comparisons, `and` and `or`, and their cases: each a box and rows of outputs.

A formula of disjunctions has as many cases as their product; they are made one after the other, never all at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from lipgraft.interop.clock import check_time
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.linear import COMPARISONS, Names, Sum, inequality, variable
from lipgraft.interop.sexpr import NUMBER, Expression, show
from lipgraft.interop.specification import Conjunction, Region

MOST_CASES, MOST_ROWS = 1024, 2048
"""Of one region, so that its size does not depend on the file's."""


@dataclass
class Clause:
    """A conjunction: bounds of inputs by number, sums of outputs that must be at most 0, and disjunctions.

    choices: of each list, one clause must hold; none can where the list is empty.
    """

    lower: dict[int, float] = field(default_factory=dict)
    upper: dict[int, float] = field(default_factory=dict)
    rows: list[Sum] = field(default_factory=list)
    choices: list[list[Clause]] = field(default_factory=list)

    @property
    def is_possible(self) -> bool:
        """Whether every disjunction leaves a choice; an empty one is false."""
        return all(self.choices)

    def bound(self, number: int, factor: float, value: float) -> None:
        """factor * X <= factor * value; the tightest bound counts."""
        if factor > 0:
            self.upper[number] = min(self.upper.get(number, math.inf), value)
        else:
            self.lower[number] = max(self.lower.get(number, -math.inf), value)

    def always(self, side: str) -> set[int]:
        """The inputs that have a bound on this side ("lower" or "upper") in every case."""
        found = set(getattr(self, side))
        for choice in self.choices:
            found |= set.intersection(*(clause.always(side) for clause in choice))
        return found


@dataclass
class ClauseReader:
    """Turns formulas into clauses. where: the file's name; deadline: by time.monotonic.

    names: what words stand for variables; equal: whether (== a b) is known, as it is since VNNLIB 2.0.
    highest: the largest number of a variable seen, by letter.
    """

    where: str
    deadline: float = math.inf
    names: Names = variable
    equal: bool = False
    highest: dict[str, int] = field(default_factory=dict)

    def add(self, formula: Expression, clause: Clause) -> None:
        """One formula more that must hold."""
        if isinstance(formula, str) or not formula:
            raise VnnlibError(f"{self.where}: {show(formula)} is not a formula.")
        match formula[0]:
            case "and":
                for part in formula[1:]:
                    self.add(part, clause)
            case "or" if len(formula) == 2:
                self.add(formula[1], clause)
            case "or":
                alternatives = [self._alone(part) for part in formula[1:]]
                clause.choices.append([part for part in alternatives if part.is_possible])
            case comparison if comparison in COMPARISONS:
                self._compare(formula, clause)
            case "==" if self.equal:
                for comparison in COMPARISONS:
                    self._compare([comparison, *formula[1:]], clause)
            case _:
                known = "<=, >=, ==, and, or" if self.equal else "<=, >=, and, or"
                raise VnnlibError(f"{self.where}: {show(formula)} is not supported; formulas consist of {known}.")

    def _alone(self, formula: Expression) -> Clause:
        check_time(self.deadline)
        clause = Clause()
        self.add(formula, clause)
        return clause

    def _compare(self, comparison: list[Expression], clause: Clause) -> None:
        if self._simple(comparison, clause):
            return
        total = inequality(comparison, self.where, self.names)
        kinds = {letter for letter, _ in total.coefficients}
        for letter, number in total.coefficients:
            self.highest[letter] = max(self.highest.get(letter, 0), number)
        if kinds == {"Y"}:
            clause.rows.append(total)
        elif kinds == {"X"} and len(total.coefficients) == 1:
            [((_, number), factor)] = total.coefficients.items()
            clause.bound(number, factor, -total.constant / factor)
        else:
            raise VnnlibError(
                f"{self.where}: {show(comparison)} is not supported: an input may only be compared with a number, and "
                "outputs with numbers and outputs."
            )

    def _simple(self, comparison: list[Expression], clause: Clause) -> bool:
        """Nearly all comparisons are X_i with a number: they need no sums. Whether this was one."""
        if len(comparison) != 3 or not isinstance(comparison[1], str) or not isinstance(comparison[2], str):
            return False
        name = self.names(comparison[1])
        if name is None or name[0] != "X" or not NUMBER.fullmatch(comparison[2]):
            return False
        value = float(comparison[2])
        if not math.isfinite(value):
            raise VnnlibError(f"{self.where}: {show(comparison)} contains a number that is not finite.")
        self.highest["X"] = max(self.highest.get("X", 0), name[1])
        clause.bound(name[1], 1.0 if comparison[0] == "<=" else -1.0, value)
        return True


def check(clause: Clause, inputs: int, where: str) -> None:
    """Every input must be bounded in every case, and no assertion may leave no inputs at all."""
    if not clause.is_possible:
        return
    for name in ("lower", "upper"):
        bounded = clause.always(name)
        missing = next((i for i in range(inputs) if i not in bounded), None)
        if missing is not None:
            raise VnnlibError(f"{where} gives X_{missing} no {name} bound; every input needs both.")
    box = _meet(_unbounded(inputs), clause)
    for parts in ([clause], *clause.choices):
        boxes = (_meet(box, part) for part in parts)
        first = next(boxes)
        if _is_empty(first) and all(map(_is_empty, boxes)):
            i = int(np.flatnonzero(first[0] > first[1])[0])
            raise VnnlibError(
                f"{where} contradicts itself: X_{i} must be at least {first[0, i]:.9g} and at most {first[1, i]:.9g}."
            )


@dataclass(frozen=True, eq=False)
class Case:
    """One choice of every disjunction. box: (2, inputs), lower and upper ends; the rows of `clause` and of `rest`."""

    box: np.ndarray
    clause: Clause
    rest: Case | None

    def rows(self) -> Iterator[Sum]:
        case: Case | None = self
        while case is not None:
            yield from case.clause.rows
            case = case.rest


_Choices = tuple[list[Clause], "_Choices"] | None
"""Disjunctions that are still to be decided, the next one first."""


def cases(root: Clause, inputs: int, deadline: float) -> Iterator[Case]:
    """The cases of a clause whose boxes are not empty. After the deadline, OutOfTime is raised."""
    start = _unbounded(inputs), None
    stack: list[tuple[np.ndarray, Case | None, Iterator[Clause], _Choices]] = [(*start, iter([root]), None)]
    while stack:
        check_time(deadline)
        box, above, alternatives, pending = stack[-1]
        clause = next(alternatives, None)
        if clause is None:
            stack.pop()
            continue
        met = _meet(box, clause)
        if _is_empty(met):
            continue
        case = Case(met, clause, above)
        for choice in reversed(clause.choices):
            pending = (choice, pending)
        if pending is None:
            yield case
        else:
            stack.append((met, case, iter(pending[0]), pending[1]))


def regions_of(found: Iterable[Case], outputs: int, where: str) -> Iterator[Region]:
    """One region per box, with the disjuncts of all cases nearby that share it."""
    boxes: dict[bytes, tuple[np.ndarray, list[Conjunction]]] = {}
    held = rows = 0
    box, key = np.empty(0), b""
    for case in found:
        if case.box is not box:  # many cases in a row share theirs
            box, key = case.box, case.box.tobytes()
        disjunct = _conjunction(case.rows(), outputs, where)
        if held == MOST_CASES or (held and rows + len(disjunct.b) > MOST_ROWS):
            yield from _gathered(boxes)
            boxes, held, rows = {}, 0, 0
        boxes.setdefault(key, (box, []))[1].append(disjunct)
        held, rows = held + 1, rows + len(disjunct.b)
    yield from _gathered(boxes)


def _gathered(boxes: dict[bytes, tuple[np.ndarray, list[Conjunction]]]) -> Iterator[Region]:
    for box, disjuncts in boxes.values():
        yield Region(torch.from_numpy(box[0]), torch.from_numpy(box[1]), tuple(disjuncts))


def _unbounded(inputs: int) -> np.ndarray:
    return np.array([[-np.inf], [np.inf]]).repeat(inputs, 1)


def _meet(box: np.ndarray, clause: Clause) -> np.ndarray:
    """The box with the clause's own bounds; the same array where it has none."""
    if not clause.lower and not clause.upper:
        return box
    out = box.copy()
    for row, ends, tighter in ((out[0], clause.lower, np.maximum), (out[1], clause.upper, np.minimum)):
        at = list(ends)
        row[at] = tighter(row[at], list(ends.values()))
    return out


def _is_empty(box: np.ndarray) -> bool:
    return bool((box[0] > box[1]).any())


def _conjunction(rows: Iterable[Sum], outputs: int, where: str) -> Conjunction:
    """Of rows that limit the same sum, the tightest. No row at all is true of every output: 0 y <= 0."""
    limits: dict[tuple[tuple[int, float], ...], float] = {}
    for row in rows:
        key = tuple(sorted((number, value) for (_, number), value in row.coefficients.items()))
        limits[key] = min(limits.get(key, math.inf), -row.constant)
    if len(limits) > MOST_ROWS:
        raise VnnlibError(f"{where} has a case of {len(limits)} conditions on outputs, more than {MOST_ROWS}.")
    A = torch.zeros(max(len(limits), 1), outputs, dtype=torch.float64)
    b = torch.zeros(len(A), dtype=torch.float64)
    for i, (coefficients, limit) in enumerate(limits.items()):
        b[i] = limit
        for number, value in coefficients:
            A[i, number] = value
    return Conjunction(A, b)
