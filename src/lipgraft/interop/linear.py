"""Constraints of a VNNLIB file as linear inequalities between variables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.sexpr import NUMBER, Expression, show

Variable = tuple[str, int]
"""("X" or "Y", number)."""

# X_01 is another name than X_1; more digits than these are no number of a variable.
_VARIABLE = re.compile(r"([XY])_(0|[1-9]\d{0,8})", re.ASCII)
COMPARISONS = ("<=", ">=")
Names = Callable[[str], Variable | None]
"""The variable that a word stands for, or None."""


@dataclass(frozen=True)
class Sum:
    """sum of coefficients[v] * v, plus constant."""

    coefficients: dict[Variable, float]
    constant: float

    def plus(self, other: Sum, factor: float = 1.0) -> Sum:
        """This + factor * other."""
        out = dict(self.coefficients)
        for variable, value in other.coefficients.items():
            out[variable] = out.get(variable, 0.0) + factor * value
        return Sum(out, self.constant + factor * other.constant)

    def times(self, factor: float) -> Sum:
        return Sum({v: factor * c for v, c in self.coefficients.items()}, factor * self.constant)


def variable(token: str) -> Variable | None:
    match = _VARIABLE.fullmatch(token)
    return None if match is None else (match[1], int(match[2]))


def inequality(expression: list[Expression], where: str, names: Names = variable) -> Sum:
    """(<= a b) or (>= a b) as a sum that must be at most 0."""
    if len(expression) != 3:
        raise VnnlibError(f"{where}: a comparison has two sides, got {show(expression)}.")
    left, right = (_linear(side, where, names) for side in expression[1:])
    low, high = (left, right) if expression[0] == "<=" else (right, left)
    total = low.plus(high, -1.0)
    kept = {v: c for v, c in total.coefficients.items() if c != 0.0}
    if not kept:
        raise VnnlibError(f"{where}: {show(expression)} constrains no variable.")
    if not all(math.isfinite(c) for c in (*kept.values(), total.constant)):
        raise VnnlibError(f"{where}: {show(expression)} contains a number that is not finite.")
    return Sum(kept, total.constant)


def _linear(expression: Expression, where: str, names: Names) -> Sum:
    if isinstance(expression, str):
        return _word(expression, where, names)
    if not expression or not isinstance(expression[0], str):
        raise VnnlibError(f"{where}: {show(expression)} is not an arithmetic expression.")
    operator, parts = expression[0], [_linear(part, where, names) for part in expression[1:]]
    if operator not in ("+", "-", "*") or not parts:
        raise VnnlibError(f"{where}: {show(expression)} is not linear; only +, - and * with a number are supported.")
    if operator == "-" and len(parts) == 1:
        return parts[0].times(-1.0)
    total = parts[0]
    for part in parts[1:]:
        total = _product(total, part, expression, where) if operator == "*" else total.plus(part, _sign(operator))
    return total


def _sign(operator: str) -> float:
    return 1.0 if operator == "+" else -1.0


def _product(one: Sum, other: Sum, expression: Expression, where: str) -> Sum:
    if one.coefficients and other.coefficients:
        raise VnnlibError(f"{where}: {show(expression)} is nonlinear: it multiplies two variables.")
    return one.times(other.constant) if one.coefficients else other.times(one.constant)


def _word(token: str, where: str, names: Names) -> Sum:
    found = names(token)
    if found is not None:
        return Sum({found: 1.0}, 0.0)
    if NUMBER.fullmatch(token):
        return Sum({}, float(token))
    raise VnnlibError(
        f"{where}: {show(token)!r} is neither a number nor a variable such as X_0 or Y_0, or X[0] in VNNLIB 2.0."
    )
