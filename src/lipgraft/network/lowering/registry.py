"""Which operations become which graph nodes: three dictionaries, filled by decorators.

A handler is a function that adds nodes to a `Builder` and returns the `Ref` of the last one:

    @lowers_module(MyActivation, activation=True)
    def my_activation(build: Builder, module: MyActivation, x: Ref) -> Ref:
        return build.activation(x, ReLU(), Graft(module.mask, module.gamma, module.omega))

    @lowers_function(torch.neg, operator.neg)
    @lowers_method("neg")
    def neg(build: Builder, input: Ref) -> Ref:
        return build.scale(input, -1.0)

A module's handler gets the module and the arguments of the call. The handler of a function or method gets the arguments
of the call under the names that PyTorch gives them; only `input`, `other` and `tensors` may be symbolic. A symbolic
tensor arrives as a `Ref`; everything else (numbers, constant tensors, parameters) arrives as it is. Names are the
builder's business: it knows which call is being lowered. To refuse, `raise build.unsupported("why")`. Modules are found
by exact type (a subclass may compute something else), and a module with a lowering is never looked into.

What a handler returns also says which memory the result has when PyTorch runs the call, for calls that overwrite
tensors. `input` itself stands for the very same tensor, `replace(input)` for what may be a part or a copy of it,
`replace(input, memory=object())` for what is always a copy. The results of `build.add`, `scale` and `activation` are
new tensors; those of `reshape` and `pick` may share the memory of what they rearrange.

activation: the call is an element-wise activation; its node is named after the module when that is called once.
in_place: the call overwrites its first argument (also when the module or the call says inplace=True).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(frozen=True)
class Lowering:
    """A handler and what the walk must know about it."""

    handler: Callable[..., Any]
    activation: bool = False
    in_place: bool = False


MODULES: dict[type[nn.Module], Lowering] = {}
FUNCTIONS: dict[Callable[..., Any], Lowering] = {}
METHODS: dict[str, Lowering] = {}


def lowers_module(*types: type[nn.Module], activation: bool = False) -> Callable[[Handler], Handler]:
    """Register handler(build, module, *arguments of the call) for these module types."""

    def register(handler: Handler) -> Handler:
        MODULES.update(dict.fromkeys(types, Lowering(handler, activation)))
        return handler

    return register


def lowers_function(
    *functions: Callable[..., Any], activation: bool = False, in_place: bool = False
) -> Callable[[Handler], Handler]:
    """Register handler(build, *arguments of the call) for these functions."""

    def register(handler: Handler) -> Handler:
        FUNCTIONS.update(dict.fromkeys(functions, Lowering(handler, activation, in_place)))
        return handler

    return register


def lowers_method(*names: str, activation: bool = False, in_place: bool = False) -> Callable[[Handler], Handler]:
    """Register handler(build, tensor, *arguments of the call) for these tensor methods."""

    def register(handler: Handler) -> Handler:
        METHODS.update(dict.fromkeys(names, Lowering(handler, activation, in_place)))
        return handler

    return register


def module_lowering(module: nn.Module) -> Lowering | None:
    """The lowering of this module, or None. A parametrised layer (weight norm, ...) is lowered as the layer it was."""
    return MODULES.get(type_before_parametrizations(module))
