"""Which calls of an fx graph are activations, and what every node is called."""

from __future__ import annotations

from collections import Counter

from torch import fx, nn

from lipgraft.network.lowering.registry import FUNCTIONS, METHODS, Lowering, module_lowering


def find_lowering(root: nn.Module, call: fx.Node) -> Lowering | None:
    """The lowering of a call, or None. root: the module in which calls find what they name."""
    if call.op == "call_module":
        return module_lowering(root.get_submodule(str(call.target)))
    if call.op == "call_function":
        return FUNCTIONS.get(call.target)  # type: ignore[arg-type]
    return METHODS.get(str(call.target)) if call.op == "call_method" else None


def is_activation(root: nn.Module, call: fx.Node) -> bool:
    """Does this call compute an element-wise activation?"""
    lowering = find_lowering(root, call)
    return lowering is not None and lowering.activation


def call_names(root: nn.Module, graph: fx.Graph) -> dict[fx.Node, str]:
    """A name for every fx node, all different.

    An activation module that is called once has its qualified name; everything else the fx node's name, with a number
    behind it when such a module already has that name.
    """
    calls = Counter(call.target for call in graph.nodes if call.op == "call_module")
    names = {
        call: str(call.target)
        for call in graph.nodes
        if call.op == "call_module" and calls[call.target] == 1 and is_activation(root, call)
    }
    taken = set(names.values())
    for call in graph.nodes:
        if call not in names:
            names[call] = unique(call.name, taken)
            taken.add(names[call])
    return names


def unique(name: str, taken: set[str]) -> str:
    """The name itself, or with the first number that makes it new."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate
