"""From masks to a grafted copy of a model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from lipgraft.activations import FUNCTIONS, METHODS, Curve
from lipgraft.errors import SettingsError, UnsupportedOperationError, unknown_name
from lipgraft.grafting.activation import GraftedActivation, Line
from lipgraft.grafting.graph import input_shape_of, traced
from lipgraft.inputs import reals
from lipgraft.network import activation_calls, like
from lipgraft.network.graph import Shape
from lipgraft.network.lowering import affine, arithmetic, normalise, pooling
from lipgraft.network.lowering import shape as moves
from lipgraft.network.lowering.activations import in_place
from lipgraft.network.lowering.naming import find_lowering

# Lowerings of operations whose result is always a new tensor, by where they are, and one by one.
_NEW = (affine.__name__, arithmetic.__name__, pooling.__name__)
_ALSO_NEW = (normalise.batch_norm_module, normalise.batch_norm, moves.cat, moves.clone)
_QUESTIONS = ("size", "dim", "ndimension", "numel")


def apply(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    slope: float = 0.4,
    intercept: float = 0.0,
    *,
    lines: Mapping[str, Line] | None = None,
    input_shape: Shape | None = None,
) -> nn.Module:
    """A copy of the model whose masked neurons are lines slope z + intercept; the model itself is untouched.

    masks: {activation name: boolean tensor of the activation's shape}; activations that are not named stay as they are.
    A graft that is there already gets the new mask, and neurons that were grafted before keep their line.
    lines: lines by activation name, such as `fit_lines` finds, in place of one slope and intercept for all.
    input_shape: of one input, when the model has no `spec` that says it; without either, a mask of the wrong shape is
    found at the first forward pass instead of here.

    An activation that is a module of its own and called once is replaced as a module, so the copy keeps the model's
    class and its other parameter names. Calls of functions, and of modules that are called several times, are replaced
    in the model's fx graph: the copy is then a torch.fx.GraphModule that runs the model's forward as it is in
    evaluation mode.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> lg.grafting.apply(model, {"1": torch.tensor([True, False])})[1]
        GraftedActivation(
          shape=(2,), grafted=1
          (base): ReLU()
        )
    """
    masks = {name: reals(mask, f"the mask of {name}", "a boolean tensor") for name, mask in masks.items()}
    new = copy.deepcopy(model)
    calls = dict(activation_calls(new))
    _check_names(masks, calls)
    graph = next(iter(calls.values())).graph.owning_module  # shares its modules with `new`
    assert graph is not None
    _check_shapes(masks, model, input_shape)
    _check_in_place(graph, {name: calls[name] for name in masks})
    number = like(model)
    grafts = {}
    for name, mask in masks.items():
        line = Line(slope, intercept) if lines is None else _line_of(lines, name)
        grafts[name] = _graft(called_activation(graph, calls[name]), mask, line, number)
    modules = dict(new.named_modules())
    if all(called_once(graph, calls[name]) and name in modules for name in grafts):
        for name, graft in grafts.items():
            _replace(new, modules[name], graft)
    else:
        rewrite(graph, calls, grafts)
        graph.training = model.training
        new = graph
    for fact in ("spec", "input_shape"):  # which neither a rewritten graph nor a copy of one carries over
        if hasattr(model, fact) and not hasattr(new, fact):
            setattr(new, fact, getattr(model, fact))
    return new


def _check_names(masks: Mapping[str, Tensor], calls: Mapping[str, fx.Node]) -> None:
    if not calls:
        raise UnsupportedOperationError("the network has no activations, so there is nothing to graft.")
    for name in masks:
        if name not in calls:
            raise SettingsError(f"mask for another network: {unknown_name('activation', name, list(calls))}")


def _check_shapes(masks: Mapping[str, Tensor], model: nn.Module, input_shape: Shape | None) -> None:
    shape = input_shape_of(model, input_shape)
    if shape is None:
        return
    for _, node in traced(model, shape, check=False).activations():  # shapes are all that is asked
        if node.name in masks and tuple(masks[node.name].shape) != node.shape:
            raise SettingsError(
                f"mask for another network: activation {node.name} has shape {node.shape}, "
                f"its mask {tuple(masks[node.name].shape)}."
            )


def _check_in_place(graph: fx.GraphModule, calls: Mapping[str, fx.Node]) -> None:
    for name, call in calls.items():
        if overwrites_shared_input(graph, call):
            raise UnsupportedOperationError(
                f"activation {name} overwrites its input in place and that input is, or may be, read elsewhere too; "
                "write this part of the forward without in-place operations."
            )


def _line_of(lines: Mapping[str, Line], name: str) -> Line:
    if name not in lines:
        raise SettingsError(f"there are no lines for the activation {name}, which has a mask.")
    return lines[name]


def _graft(old: nn.Module, mask: Tensor, line: Line, number: Tensor) -> GraftedActivation:
    """The graft that takes the place of `old`; lines that `old` has already are kept.

    number: some number of the model, for its dtype and device.
    """
    mask = mask.to(number.device)
    base = old.base if isinstance(old, GraftedActivation) else old
    graft = GraftedActivation(base, mask, line.slope, line.intercept).to(number).train(old.training)
    if isinstance(old, GraftedActivation) and old.mask.shape == mask.shape:
        with torch.no_grad():
            graft.gamma.copy_(torch.where(old.mask, old.gamma, graft.gamma))
            graft.omega.copy_(torch.where(old.mask, old.omega, graft.omega))
    return graft


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever the model holds `old` (a module may be registered under several names)."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


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
    """Whether the call writes over memory that something else may read later; a graft never writes over its input."""
    if not _in_place(graph, call):
        return False
    order = {node: i for i, node in enumerate(graph.graph.nodes)}
    same = _same_memory(graph, call)
    return any(order[user] > order[call] and not _asks(user) for node in same for user in node.users)


def _same_memory(graph: fx.GraphModule, call: fx.Node) -> set[fx.Node]:
    """The tensors, but for the call's own result, that may share memory with what the call writes over."""
    links: dict[fx.Node, set[fx.Node]] = {node: set() for node in graph.graph.nodes}
    for node in graph.graph.nodes:
        for source in _may_return(graph, node) if node is not call else ():
            links[node].add(source)
            links[source].add(node)
    found: set[fx.Node] = set()
    reached = [_argument(call, 0, "input", None)]
    while reached:
        node = reached.pop()
        if node not in found:
            found.add(node)
            reached.extend(links[node])
    return found


def _may_return(graph: fx.GraphModule, call: fx.Node) -> list[fx.Node]:
    """The arguments of which the call's result may be a part or another name."""
    if call.op not in ("call_module", "call_function", "call_method") or _asks(call):
        return []
    lowering = find_lowering(graph, call)
    if lowering is None:
        return call.all_input_nodes
    if lowering.activation:
        new = not _in_place(graph, call)
    else:
        new = not lowering.in_place and (lowering.handler.__module__ in _NEW or lowering.handler in _ALSO_NEW)
    if new:
        return []
    first = _argument(call, 0, "input", None)
    return [first] if isinstance(first, fx.Node) else call.all_input_nodes


def _asks(call: fx.Node) -> bool:
    """Whether the call asks for a shape or the like."""
    return call.target is getattr or (call.op == "call_method" and call.target in _QUESTIONS)


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
