"""Formulas of comparisons, `and` and `or`, as lists of cases: each a box and rows of outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.linear import COMPARISONS, Sum, inequality
from lipgraft.interop.sexpr import Expression, show
from lipgraft.interop.specification import Conjunction, Region


@dataclass
class Clause:
    """A conjunction: bounds of inputs by number, and sums of outputs that must be at most 0."""

    lower: dict[int, float] = field(default_factory=dict)
    upper: dict[int, float] = field(default_factory=dict)
    rows: list[Sum] = field(default_factory=list)

    def add(self, comparison: list[Expression], where: str) -> None:
        """One comparison more."""
        total = inequality(comparison, where)
        kinds = {letter for letter, _ in total.coefficients}
        if kinds == {"Y"}:
            self.rows.append(total)
        elif kinds == {"X"} and len(total.coefficients) == 1:
            [((_, number), factor)] = total.coefficients.items()
            self.bound(number, factor, -total.constant / factor)
        else:
            raise VnnlibError(
                f"{where}: {show(comparison)} is not supported: an input may only be compared with a number, and "
                "outputs with numbers and outputs."
            )

    def bound(self, number: int, factor: float, value: float) -> None:
        """factor * X <= factor * value; the tightest bound counts."""
        if factor > 0:
            self.upper[number] = min(self.upper.get(number, math.inf), value)
        else:
            self.lower[number] = max(self.lower.get(number, -math.inf), value)

    def update(self, other: Clause) -> None:
        """Everything that the other one says, too."""
        for number, value in other.upper.items():
            self.bound(number, 1.0, value)
        for number, value in other.lower.items():
            self.bound(number, -1.0, value)
        self.rows.extend(other.rows)

    @staticmethod
    def joined(first: Clause, others: Iterable[Clause]) -> Clause:
        out = Clause(dict(first.lower), dict(first.upper), list(first.rows))
        for other in others:
            out.update(other)
        return out


def clauses_of(formula: Expression, where: str, most: int) -> list[Clause]:
    """The cases of a formula (its disjunctive normal form), at most `most` of them."""
    if isinstance(formula, str) or not formula:
        raise VnnlibError(f"{where}: {show(formula)} is not a formula.")
    if formula[0] in COMPARISONS:
        clause = Clause()
        clause.add(formula, where)
        return [clause]
    if formula[0] == "or" and len(formula) > 1:
        return [clause for part in formula[1:] for clause in clauses_of(part, where, most)]
    if formula[0] != "and" or len(formula) == 1:
        raise VnnlibError(f"{where}: {show(formula)} is not supported; formulas consist of <=, >=, and, or.")
    cases = [Clause()]
    for part in formula[1:]:
        inner = clauses_of(part, where, most)
        if len(inner) == 1:  # the usual case, without copies
            for case in cases:
                case.update(inner[0])
            continue
        if len(cases) * len(inner) > most:
            raise VnnlibError(f"{where} combines disjunctions into more than {most} cases.")
        cases = [Clause.joined(case, [choice]) for case in cases for choice in inner]
    return cases


def regions_of(cases: list[Clause], inputs: int, outputs: int, where: str) -> tuple[Region, ...]:
    """One region per box, with the disjuncts of all cases that share it."""
    boxes: dict[bytes, tuple[np.ndarray, list[Conjunction]]] = {}
    for case in cases:
        box = _box(case, inputs, where)
        disjuncts = boxes.setdefault(box.tobytes(), (box, []))[1]
        disjuncts.append(_conjunction(case.rows, outputs, where))
    return tuple(
        Region(torch.from_numpy(box[0]), torch.from_numpy(box[1]), tuple(disjuncts))
        for box, disjuncts in boxes.values()
    )


def _box(case: Clause, inputs: int, where: str) -> np.ndarray:
    """(2, inputs): the lower and the upper ends."""
    box = np.empty((2, inputs))
    for row, name, ends in ((0, "lower", case.lower), (1, "upper", case.upper)):
        if len(ends) != inputs or max(ends) >= inputs:
            foreign = next((i for i in sorted(ends) if i >= inputs), None)
            if foreign is not None:
                raise VnnlibError(f"{where} bounds X_{foreign}, which it does not declare.")
            missing = next(i for i in range(inputs) if i not in ends)
            raise VnnlibError(f"{where} gives X_{missing} no {name} bound; every input needs both.")
        box[row, list(ends)] = list(ends.values())
    empty = np.flatnonzero(box[0] > box[1])
    if len(empty):
        i = int(empty[0])
        raise VnnlibError(
            f"{where} contradicts itself: X_{i} must be at least {box[0, i]:.9g} and at most {box[1, i]:.9g}."
        )
    return box


def _conjunction(rows: list[Sum], outputs: int, where: str) -> Conjunction:
    if not rows:
        raise VnnlibError(f"{where} says nothing of the outputs in one of its cases, so every input would violate it.")
    A, b = torch.zeros(len(rows), outputs, dtype=torch.float64), torch.zeros(len(rows), dtype=torch.float64)
    for i, row in enumerate(rows):
        b[i] = -row.constant
        for (_, number), value in row.coefficients.items():
            if number >= outputs:
                raise VnnlibError(f"{where} constrains Y_{number}, which it does not declare.")
            A[i, number] = value
    return Conjunction(A, b)
