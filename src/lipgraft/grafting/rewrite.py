"""Activations as calls in an fx graph: what a call computes, and putting a module in its place."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from lipgraft.activations import FUNCTIONS, METHODS, Curve
from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.lowering.activations import in_place


def called_activation(graph: fx.GraphModule, call: fx.Node) -> nn.Module:
    """The activation that a call computes, as a module."""
    if call.op == "call_module":
        return graph.get_submodule(str(call.target))
    kind, arguments = _bound(call)
    return kind.called(**arguments).module()


def called_once(graph: fx.GraphModule, call: fx.Node) -> bool:
    """Whether the call is the only one of its module."""
    same = [node for node in graph.graph.nodes if node.op == "call_module" and node.target == call.target]
    return call.op == "call_module" and len(same) == 1


def overwrites_shared_input(graph: fx.GraphModule, call: fx.Node) -> bool:
    """Whether the call writes over a tensor that something else reads too; a graft never writes over its input."""
    return _in_place(graph, call) and len(_argument(call, 0, "input", None).users) > 1


def rewrite(graph: fx.GraphModule, calls: Mapping[str, fx.Node], grafts: Mapping[str, nn.Module]) -> None:
    """Change the graph so that each grafted call goes to its graft, registered under the activation's name.

    calls: every activation by name. A module of which some calls are grafted gets a copy per call, so that each call
    keeps its own name from now on.
    """
    split = {str(call.target) for name, call in calls.items() if name in grafts and not called_once(graph, call)}
    modules: dict[str, tuple[str, nn.Module]] = {}  # activation name: (where its new module goes, the module)
    for name, call in calls.items():
        if name in grafts:
            target = name if called_once(graph, call) else _attribute(graph, name, split)
            modules[name] = target, grafts[name]
        elif call.op == "call_module" and call.target in split:
            modules[name] = _attribute(graph, name, split), copy.deepcopy(called_activation(graph, call))
    for name, (target, module) in modules.items():
        call = calls[name]
        graph.set_submodule(target, module)
        with graph.graph.inserting_before(call):
            new = graph.graph.call_module(target, (_argument(call, 0, "input", None),))
        call.replace_all_uses_with(new)
        graph.graph.erase_node(call)
    graph.delete_all_unused_submodules()
    graph.graph.lint()
    graph.recompile()


def _attribute(graph: fx.GraphModule, name: str, going: set[str]) -> str:
    """A name for a new submodule: the activation's own, unless something that stays is called so."""
    candidate, number = name, 0
    while hasattr(graph, candidate) and candidate not in going:
        number += 1
        candidate = f"{name}_graft{number}"
    return candidate


def _in_place(graph: fx.GraphModule, call: fx.Node) -> bool:
    if call.op == "call_module":
        return bool(getattr(graph.get_submodule(str(call.target)), "inplace", False))
    name = str(call.target) if call.op == "call_method" else str(getattr(call.target, "__name__", call.target))
    return in_place(name) or bool(_bound(call)[1].get("inplace", False))


def _bound(call: fx.Node) -> tuple[type[Curve], dict[str, Any]]:
    """The kind of activation that a function or method call computes, and its arguments without the input."""
    known = METHODS.get(str(call.target)) if call.op == "call_method" else FUNCTIONS.get(call.target)  # type: ignore[arg-type]
    if known is None:
        raise UnsupportedOperationError(f"activation {call.name} ({call.target}) cannot be grafted.")
    keywords = {key: value for key, value in call.kwargs.items() if key != "input"}
    return known, inspect.signature(known.called).bind(*call.args[1:], **keywords).arguments


def _argument(call: fx.Node, position: int, name: str, default: Any) -> Any:
    return call.args[position] if position < len(call.args) else call.kwargs.get(name, default)
