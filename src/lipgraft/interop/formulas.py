"""Activations that files write as formulas of simpler operators, such as z * Sigmoid(z).

Two formulas are the same when their normal forms are: sums and products are flattened and sorted, their numbers drawn
together, differences and quotients turned into them. So the order in which an exporter multiplies does not matter.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lipgraft.activations import KINDS
from lipgraft.activations.curve import Formula
from lipgraft.interop.clock import check_time
from lipgraft.interop.optional import need

Z = "z"
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Pow")
POWERS = (2, 3)  # exponents that are read as products
SPACE = 2  # times the longest known formula: a file may write one with more operators
TOLERANCE = 1e-5  # constants are float32, and some are written with few digits


def recognised(
    nodes: Sequence[Any], constants: Mapping[str, np.ndarray], outputs: Sequence[str], deadline: float = math.inf
) -> list[Any]:
    """The nodes of a file, where a formula of a known activation is one node of that activation's operator.

    constants: the file's own; outputs: the names that must stay; deadline: by time.monotonic, then OutOfTime is raised.
    """
    curves = [(c.formula, c) for kind in KINDS for c in kind.with_formula() if c.formula is not None]
    known = [(_normal(formula), curve) for formula, curve in curves]
    nodes = list(nodes)  # protobuf makes other objects of them each time
    inner = {n[0] for form, _ in known for n in _parts(form) if isinstance(n[0], str)}
    if not inner & {node.op_type for node in nodes}:
        return nodes
    written = _Written.of(nodes, constants, inner, SPACE * max(_size(formula) for formula, _ in curves))
    replaced: dict[int, Any] = {}
    gone: set[int] = set()
    # In the file's order: what an activation reads may be the end of an earlier one, at which no walk goes further.
    for node in nodes:
        check_time(deadline)
        for leaf in written.leaves(node):
            formula = written.formula(node.output[0], leaf)
            form = None if formula is None else _normal(formula)
            curve = next((curve for other, curve in known if form is not None and _same(other, form)), None)
            if curve is not None:
                make = need("onnx.helper").make_node
                activation = make(curve.onnx[0], [leaf], list(node.output), node.name, **curve.onnx_attributes())
                gone |= {id(n) for n in written.inside(node, leaf)}
                replaced[id(node)] = written.producer[node.output[0]] = activation
                break
    return _without_dead([replaced.get(id(node), node) for node in nodes], gone - set(replaced), outputs)


@dataclass(frozen=True)
class _Written:
    """What a file computes of what. numbers: its scalars; steady: tensors that do not depend on the input at all.

    inner: the operators besides arithmetic that known formulas have; most: how many names a formula may consist of. A
    file can read a tensor twice, and that result twice again: written out, it is a formula without end.
    """

    producer: dict[str, Any]
    numbers: Mapping[str, float]
    steady: set[str]
    inner: set[str]
    most: int

    @classmethod
    def of(cls, nodes: Sequence[Any], constants: Mapping[str, np.ndarray], inner: set[str], most: int) -> _Written:
        steady = set(constants)
        for node in nodes:  # in the file's order, each after what it reads
            if steady.issuperset(node.input):
                steady.update(node.output)
        producer = {name: node for node in nodes for name in node.output}
        return cls(producer, _numbers(nodes, constants), steady, inner, most)

    def _within(self, name: str) -> Any:
        """The node behind a tensor, where it can be a part of a formula."""
        node = self.producer.get(name)
        return node if node is not None and (node.op_type in ARITHMETIC or node.op_type in self.inner) else None

    def leaves(self, node: Any) -> Iterator[str]:
        """The tensors of which the node may be a formula: all that it reads comes from it, so one way finds it."""
        current = self._within(node.output[0]) if node.output else None
        for _ in range(self.most):
            name = None if current is None else next((name for name in current.input if name not in self.steady), None)
            if name is None:
                return
            yield name
            current = self._within(name)

    def formula(self, name: str, leaf: str) -> Formula | None:
        """The tensor `name` as a formula of `leaf`; None if it reads anything else, or is longer than any known."""
        left = iter(range(self.most))

        def read(name: str) -> Formula | None:
            node = self._within(name)
            if next(left, None) is None or not (name == leaf or name in self.numbers or node is not None):
                return None
            if name == leaf:
                return Z
            if name in self.numbers:
                return self.numbers[name]
            symbol, inputs = node.op_type, list(node.input)
            if symbol == "Pow" and self.numbers.get(inputs[1]) in POWERS:  # as long as the product that it stands for
                symbol, inputs = "Mul", inputs[:1] * int(self.numbers[inputs[1]])
            parts: list[Formula] = []
            for part in map(read, inputs):
                if part is None:
                    return None
                parts.append(part)
            return (symbol, *parts)

        return read(name)

    def inside(self, node: Any, leaf: str) -> list[Any]:
        """The nodes of a formula of `leaf`, the last one first, each once."""
        found = {id(node): node}
        open_ = [node]
        while open_:
            for name in open_.pop().input:
                part = None if name == leaf or name in self.numbers else self._within(name)
                if part is not None and id(part) not in found:
                    found[id(part)] = part
                    open_.append(part)
        return list(found.values())


def _size(formula: Formula) -> int:
    """Of how many names a formula consists, powers written out as products."""
    if not isinstance(formula, tuple):
        return 1
    if formula[0] == "Pow" and formula[2] in POWERS:
        return 1 + int(formula[2]) * _size(formula[1])
    return 1 + sum(map(_size, formula[1:]))


def _numbers(nodes: Sequence[Any], constants: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The scalars among the file's constants and its Constant nodes."""
    arrays = dict(constants)
    for node in nodes:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                arrays[node.output[0]] = need("onnx.numpy_helper").to_array(attribute.t)
            elif attribute.name == "value_float":
                arrays[node.output[0]] = np.asarray(attribute.f)
    return {name: float(a.reshape(())) for name, a in arrays.items() if a.size == 1 and a.dtype.kind in "fiu"}


def _normal(formula: Formula) -> tuple[Any, ...]:
    """("sum" or "product", its number, its other parts), or (operator or name, its number 1, its arguments)."""
    if isinstance(formula, str):
        return (formula, 1.0, ())
    if not isinstance(formula, tuple):
        return ("product", float(formula), ())
    symbol, parts = formula[0], [_normal(part) for part in formula[1:]]
    if symbol == "Neg":
        return _joined("product", [("product", -1.0, ()), *parts])
    if symbol == "Sub":
        return _joined("sum", [parts[0], _joined("product", [("product", -1.0, ()), parts[1]])])
    if symbol == "Div" and parts[1][0] == "product" and not parts[1][2] and parts[1][1]:
        return _joined("product", [parts[0], ("product", 1.0 / parts[1][1], ())])
    if symbol == "Pow" and parts[1] in [("product", float(n), ()) for n in POWERS]:
        return _joined("product", [parts[0]] * int(parts[1][1]))
    if symbol in ("Add", "Mul"):
        return _joined("sum" if symbol == "Add" else "product", parts)
    return (symbol, 1.0, tuple(parts))


def _joined(kind: str, parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The sum or product of normal forms, as one."""
    neutral, join = (0.0, operator.add) if kind == "sum" else (1.0, operator.mul)
    number, rest = neutral, []
    for part in parts:
        if part[0] == "product" and not part[2]:  # a number
            number = join(number, part[1])
        elif part[0] == kind:
            number = join(number, part[1])
            rest += part[2]
        else:
            rest.append(part)
    if len(rest) == 1 and number == neutral:
        return tuple(rest[0])
    return (kind, number, tuple(sorted(rest, key=_shape)))


def _shape(form: tuple[Any, ...]) -> str:
    """The form without its numbers, to sort by."""
    return f"{form[0]}({', '.join(_shape(part) for part in form[2])})"


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return (
        one[0] == other[0]
        and math.isclose(one[1], other[1], rel_tol=TOLERANCE)
        and len(one[2]) == len(other[2])
        and all(_same(a, b) for a, b in zip(one[2], other[2], strict=True))
    )


def _parts(form: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Every operator within a normal form that is not arithmetic."""
    if form[2] and form[0] not in ("sum", "product"):
        yield form
    for part in form[2]:
        yield from _parts(part)


def _without_dead(nodes: Sequence[Any], doubtful: set[int], outputs: Sequence[str]) -> list[Any]:
    """The nodes without those among the doubtful ones whose results nobody reads any more."""
    uses = Counter(name for node in nodes for name in node.input)
    uses.update(outputs)
    kept = []
    for node in reversed(nodes):
        if id(node) in doubtful and not any(uses[name] for name in node.output):
            uses.subtract(node.input)
        else:
            kept.append(node)
    return kept[::-1]
