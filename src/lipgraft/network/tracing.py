"""From an nn.Module to a torch.fx graph, in evaluation mode."""

from __future__ import annotations

import inspect
import operator
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.calls import Traced
from lipgraft.network.evaluation import check_module, evaluated
from lipgraft.network.lowering.registry import module_lowering

_TORCH = os.path.dirname(torch.__file__)
# Hooks before a layer's forward that do nothing but to compute its weights, which are read after they have run.
RECOMPUTE_WEIGHTS = (BasePruningMethod, SpectralNorm, WeightNorm)
# What runs when a module is called, and then calls its forward.
_CALLS = ("__call__", "_call_impl", "_wrapped_call_impl")


class _Proxy(fx.Proxy):
    """fx reads `x += y` as `x = x + y` and forgets that other names of x change too; here it stays in place."""


def _in_place(target: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda self, other: self.tracer.create_proxy("call_function", target, (self, other), {})


for _target in (operator.iadd, operator.isub, operator.imul, operator.itruediv):
    setattr(_Proxy, f"__{_target.__name__}__", _in_place(_target))


class _Tracer(fx.Tracer):
    """Stops at the modules of torch.nn and at every module that has a lowering; remembers source lines.

    fx can remember them too, but it imports PyTorch's compiler for that, which takes seconds.
    """

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.stack_trace = node.stack_trace or _source()
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_lowering(m) is not None or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _source() -> str | None:
    """The innermost line outside PyTorch that fx is tracing at this moment, as a traceback shows it."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not _graph.__code__:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH):
            line = traceback.FrameSummary(file, frame.f_lineno, frame.f_code.co_name)
            return "".join(traceback.format_list([line]))
        frame = frame.f_back
    return None


def _check_visible(root: nn.Module, tracer: _Tracer) -> None:
    """fx sees the forward of the root's class, and of a layer that it does not look into only that it is called."""
    if _global_forward_hooks or _global_forward_pre_hooks:
        raise UnsupportedOperationError(
            "there are forward hooks on all modules of the process, which tracing does not see; remove them."
        )
    for name, module in root.named_modules():
        if module is not root and not tracer.is_leaf_module(module, name):
            continue
        which = f"the layer {name!r}" if name else "the model"
        before = [hook for hook in module._forward_pre_hooks.values() if not isinstance(hook, RECOMPUTE_WEIGHTS)]
        if before or module._forward_hooks:
            raise UnsupportedOperationError(
                f"{which} has forward hooks, which may change its result and which tracing does not see; remove them, "
                "or write what they do into a module's forward."
            )
        if _own_call(module):
            raise UnsupportedOperationError(
                f"{which} ({type(module).__name__}) has its own __call__, which tracing does not see; write what it "
                "does into forward."
            )
        own = _own_function(module, among=None if tracer.is_leaf_module(module, name) else "forward")
        if own is not None:
            raise UnsupportedOperationError(
                f"{which} ({type(module).__name__}) has its own {own} instead of its class's, which tracing "
                "does not see; write it into the forward of a module class."
            )


def _own_function(module: nn.Module, among: str | None) -> str | None:
    """A function of the module's class that the module itself has replaced. among: look at this one alone.

    What every module has besides `forward`, such as `train`, takes no part in a forward.
    """
    others = {*vars(nn.Module), "reset_parameters"} - {"forward"}
    own = vars(module).keys() - others
    replaced = (name for name in sorted(own) if inspect.isfunction(getattr(type(module), name, None)))
    return next((name for name in replaced if among in (None, name)), None)


def _own_call(module: nn.Module) -> bool:
    """Whether calling the module is more than its class's forward, between hooks. fx makes a class of each graph."""
    own = [*vars(module), *(name for kind in type(module).__mro__ if kind is not nn.Module for name in vars(kind))]
    allowed = ("__call__", "_wrapped_call") if isinstance(module, fx.GraphModule) else ()
    return any(name in own and name not in allowed for name in _CALLS)


def trace_calls(model: nn.Module) -> Traced:
    """The calls of the model's forward in evaluation mode, to be read. `trace_fx` makes a module that runs of them."""
    check_module(model)
    tracer, root = _tracer(model)
    with evaluated(root):
        return Traced.of(root, _graph(tracer, root, type(model).__name__))


def trace_fx(model: nn.Module) -> fx.GraphModule:
    """The fx graph of the model's forward in evaluation mode. Its modules and parameters are the model's own."""
    check_module(model)
    tracer, root = _tracer(model)
    with evaluated(root):
        name = type(model).__name__
        return fx.GraphModule(root, _graph(tracer, root, name), class_name=name)


def _tracer(model: nn.Module) -> tuple[_Tracer, nn.Module]:
    """With the module to trace: a single layer (nn.Conv2d, ...) is one call, not the layer's own Python code."""
    tracer = _Tracer()
    root = nn.Sequential(model) if tracer.is_leaf_module(model, "") else model
    _check_visible(root, tracer)
    return tracer, root


def _graph(tracer: _Tracer, root: nn.Module, name: str) -> fx.Graph:
    try:
        return tracer.trace(root)
    except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, NameError, AttributeError) as error:
        raise UnsupportedOperationError(
            f"the forward of {name} cannot be traced: {error}. Its Python code may not branch or "
            "loop on the values or shapes of tensors, nor write to parts of them; decide such things in __init__."
        ) from error


def normalises(model: nn.Module) -> bool:
    """Whether BatchNorm, as a module or a function, is a part of the model."""
    if any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) for module in model.modules()):
        return True
    return any(node.target in (F.batch_norm, torch.batch_norm) for node in trace_calls(model).graph.nodes)
