"""From an nn.Module to a torch.fx graph, in evaluation mode."""

from __future__ import annotations

import operator
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.lowering.registry import module_lowering

_TORCH = os.path.dirname(torch.__file__)


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
    while frame.f_back is not None and frame.f_code is not trace_fx.__code__:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH):
            line = traceback.FrameSummary(file, frame.f_lineno, frame.f_code.co_name)
            return "".join(traceback.format_list([line]))
        frame = frame.f_back
    return None


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every submodule in evaluation mode. Afterwards each has its own attributes back.

    That means the training flags, and what a forward under fx may leave behind: constants that fx hangs on the model,
    or symbolic values that the model keeps for later.
    """
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    for now, _ in before:
        now["training"] = False
    try:
        yield
    finally:
        for now, then in before:
            for key in now.keys() - then.keys():
                del now[key]
            now.update(then)


def trace_fx(model: nn.Module) -> fx.GraphModule:
    """The fx graph of the model's forward in evaluation mode. Its modules and parameters are the model's own."""
    tracer = _Tracer()
    # A single layer (nn.Conv2d, ...) is traced as one call, not through the layer's own Python code.
    root = nn.Sequential(model) if tracer.is_leaf_module(model, "") else model
    with evaluation_mode(root):
        try:
            graph = tracer.trace(root)
        except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, NameError, AttributeError) as error:
            raise UnsupportedOperationError(
                f"the forward of {type(model).__name__} cannot be traced: {error}. Its Python code may not branch or "
                "loop on the values or shapes of tensors, nor write to parts of them; decide such things in __init__."
            ) from error
        return fx.GraphModule(root, graph, class_name=type(model).__name__)
