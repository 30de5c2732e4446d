"""The walk over an fx graph: symbolic tensors become nodes, everything else is computed on the spot."""

from __future__ import annotations

import inspect
import operator
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.calls import Traced, flat
from lipgraft.network.graph import Network
from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.naming import call_names, find_lowering
from lipgraft.network.simplify import simplify

_IN_PLACE_OPERATORS = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.setitem)


_signature = cache(inspect.signature)
"""Of a handler; there are few, and each is called for many nodes."""


@torch.no_grad()
def lower(traced: Traced, example: Tensor, fold: bool = True, dtype: torch.dtype | None = None) -> Network:
    """The graph of an fx graph. example: (batch, *input_shape), only used for shapes; fold: see `trace`.

    dtype: of the graph; by default the example's, which is the model's. What the model computes of its parameters is
    computed in its own type in any case.
    Runs without gradients, so that tensors computed on the way are detached snapshots while parameters used directly
    stay live.
    """
    walk = _Walk(traced, example, dtype)
    for node in traced.graph.nodes:
        walk.visit(node)
    return walk.result(fold)


class _Walk:
    def __init__(self, traced: Traced, example: Tensor, dtype: torch.dtype | None) -> None:
        self.traced = traced
        self.build = Builder(traced.root, example, call_names(traced.root, traced.graph), dtype)
        self.values: dict[fx.Node, Any] = {}
        self.output: Any = None

    def visit(self, node: fx.Node) -> None:
        self.build.at(node)
        if node.op == "placeholder":
            self.values[node] = self._placeholder(node)
        elif node.op == "get_attr":
            self.values[node] = self.traced.attribute(str(node.target))
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self.values[n])
            if node.op == "output":
                self.output = args[0]
            elif _has_ref((args, kwargs)):
                self.values[node] = self._symbolic(node, args, kwargs)
            else:
                self.values[node] = self._concrete(node, args, kwargs)

    def result(self, fold: bool) -> Network:
        if not isinstance(self.output, Ref):
            raise UnsupportedOperationError(
                "the network must return one tensor that depends on its input; wrap it in a module that does."
            )
        if len(self.output.shape) != 1:
            raise UnsupportedOperationError(
                f"the network's output has shape {self.output.shape} (without the batch axis), but it must be a "
                "vector; flatten it at the end of forward."
            )
        return simplify(
            Network(tuple(self.build.nodes), self.output.position), self.build.foldable if fold else frozenset()
        )

    def _placeholder(self, node: fx.Node) -> Any:
        if not self.build.nodes:
            return self.build.input()
        if not node.args:
            raise self.build.unsupported("a network has one input; give the others default values or bind them")
        return node.args[0]

    def _concrete(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Shape arithmetic and constants: just run it."""
        target: Any = node.target
        if args and isinstance(args[0], Tensor) and _writes(node):
            raise self.build.unsupported("it would overwrite a constant of the model")
        constants = [t for t in _tensors((args, kwargs)) if not t.is_inference()]
        versions = [t._version for t in constants]
        if node.op == "call_module":
            target = self.traced.root.get_submodule(target)
        elif node.op == "call_method":
            target, args = getattr(args[0], target), args[1:]
        result = target(*args, **kwargs)
        if versions != [t._version for t in constants]:
            raise self.build.unsupported("it overwrites a constant of the model")
        return result

    def _symbolic(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lowering = find_lowering(self.traced.root, node)
        if lowering is None:
            raise self.build.unsupported("there is no lowering for this operation")
        in_place = lowering.in_place
        if node.op == "call_module":
            module = self.traced.root.get_submodule(str(node.target))
            args, in_place = (module, *args), bool(getattr(module, "inplace", False))
        try:
            call = _signature(lowering.handler).bind(self.build, *args, **kwargs)
        except TypeError as error:
            raise self.build.unsupported(f"its arguments are not the known ones ({error})") from error
        symbolic = {name for name, value in call.arguments.items() if _has_ref(value)}
        if node.op != "call_module" and not symbolic <= {"input", "other", "tensors"}:
            raise self.build.unsupported("an argument that must be a constant depends on the input")
        value = lowering.handler(*call.args, **call.kwargs)
        if in_place or call.arguments.get("inplace"):
            written = call.args[2 if node.op == "call_module" else 1]
            if isinstance(written, Tensor):
                raise self.build.unsupported("it would overwrite a constant of the model")
            if isinstance(written, Ref) and value is not written:
                self._overwrite(node, written, value)
        return value

    def _overwrite(self, node: fx.Node, before: Ref, after: Ref) -> None:
        """Let every other name of the overwritten tensor see the new value.

        What only may share its memory, or shares a part of it, must not be read later: whether a reshape copies
        depends on strides, which the graph does not have.
        """
        order = {n: i for i, n in enumerate(self.traced.graph.nodes)}
        for other, value in self.values.items():
            if value is before:
                self.values[other] = after
            elif _shares(value, before.memory) and any(order[user] > order[node] for user in other.users):
                raise self.build.unsupported(
                    f"it overwrites memory that {other.name!r}, which is used later, has or may have too",
                    "Write this part of the forward without in-place operations.",
                )


def _shares(value: Any, memory: object) -> bool:
    """Whether the value, or a part of it, has or may have this memory."""
    return any(isinstance(part, Ref) and part.memory is memory for part in flat(value))


def _writes(node: fx.Node) -> bool:
    """Does this call change its first argument?"""
    if node.op == "call_method":
        name = str(node.target)
        return name.endswith("_") and not name.endswith("__")
    return node.op == "call_function" and node.target in _IN_PLACE_OPERATORS


def _has_ref(value: Any) -> bool:
    return any(isinstance(part, Ref) for part in flat(value))


def _tensors(value: Any) -> list[Tensor]:
    return [part for part in flat(value) if isinstance(part, Tensor)]
