"""From masks to a grafted copy of a model."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn

from lipgraft.errors import SettingsError, UnsupportedOperationError, unknown_name
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.grafting.graph import input_shape_of, traced
from lipgraft.grafting.lines import Line
from lipgraft.grafting.rewrite import called_activation, called_once, overwrites_shared_input, rewrite
from lipgraft.network import activation_calls, like
from lipgraft.network.graph import Shape


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
    for _, node in traced(model, shape).activations():
        if node.name in masks and tuple(masks[node.name].shape) != node.shape:
            raise SettingsError(
                f"mask for another network: activation {node.name} has shape {node.shape}, "
                f"its mask {tuple(masks[node.name].shape)}."
            )


def _check_in_place(graph: fx.GraphModule, calls: Mapping[str, fx.Node]) -> None:
    for name, call in calls.items():
        if overwrites_shared_input(graph, call):
            raise UnsupportedOperationError(
                f"activation {name} overwrites its input in place and that input is read elsewhere too; "
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
