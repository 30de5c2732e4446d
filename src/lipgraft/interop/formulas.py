"""Activations that files write as formulas of simpler operators, such as z * Sigmoid(z).

Two formulas are the same when their normal forms are: sums and products are flattened and sorted, their numbers drawn
together, differences and quotients turned into them. So the order in which an exporter multiplies does not matter.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lipgraft.activations import KINDS
from lipgraft.activations.curve import Formula
from lipgraft.interop.optional import need

Z = "z"
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Pow")
TOLERANCE = 1e-5  # constants are float32, and some are written with few digits


def recognised(nodes: Sequence[Any], constants: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[Any]:
    """The nodes of a file, where a formula of a known activation is one node of that activation's operator.

    constants: the file's own; outputs: the names that must stay.
    """
    known = [(_normal(c.formula), c) for kind in KINDS for c in kind.with_formula() if c.formula is not None]
    nodes = list(nodes)  # protobuf makes other objects of them each time
    inner = {n[0] for form, _ in known for n in _parts(form) if isinstance(n[0], str)}
    producer = {name: node for node in nodes for name in node.output}
    if not inner & {node.op_type for node in nodes}:
        return nodes
    numbers = _numbers(nodes, constants)
    replaced: dict[int, Any] = {}
    gone: set[int] = set()
    # In the file's order: what an activation reads may be the end of an earlier one, at which no walk goes further.
    for node in nodes:
        inside = list(_inside(node, producer, numbers, inner))
        leaves = dict.fromkeys(name for n in inside for name in n.input if name not in numbers)
        for leaf in leaves:
            form = _normal(_formula(node.output[0], leaf, producer, numbers, inner))
            curve = next((curve for other, curve in known if _same(other, form)), None)
            if curve is not None:
                make = need("onnx.helper").make_node
                activation = make(curve.onnx[0], [leaf], list(node.output), node.name, **curve.onnx_attributes())
                replaced[id(node)] = producer[node.output[0]] = activation
                gone |= {id(n) for n in _inside(node, producer, numbers, inner, leaf)}
                break
    return _without_dead([replaced.get(id(node), node) for node in nodes], gone - set(replaced), outputs)


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


def _inside(
    node: Any, producer: Mapping[str, Any], numbers: Mapping[str, float], inner: set[str], leaf: str = ""
) -> Iterator[Any]:
    """The node and those before it that may belong to the same formula, of the tensor `leaf` if that is given."""
    if node.op_type in ARITHMETIC or node.op_type in inner:
        yield node
        for name in node.input:
            if name in producer and name not in numbers and name != leaf:
                yield from _inside(producer[name], producer, numbers, inner, leaf)


def _formula(
    name: str, leaf: str, producer: Mapping[str, Any], numbers: Mapping[str, float], inner: set[str]
) -> Formula:
    """The tensor `name` as a formula of the tensor `leaf`; what is neither stands in it under its own name."""
    if name == leaf:
        return Z
    if name in numbers:
        return numbers[name]
    node = producer.get(name)
    if node is None or (node.op_type not in ARITHMETIC and node.op_type not in inner):
        return f"tensor {name}"
    return (node.op_type, *(_formula(part, leaf, producer, numbers, inner) for part in node.input))


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
    if symbol == "Pow" and parts[1] in [("product", float(n), ()) for n in (2, 3)]:
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
