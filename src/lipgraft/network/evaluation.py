"""Running the module that a user gave, without changing it."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.graph import Network

# What a module keeps in dictionaries of their own; everything else is in vars(module).
_KEPT = ("_parameters", "_buffers")

# One thread at a time: modules may share layers, and fx traces by replacing `nn.Module.__call__` for the whole process,
# so that a module that another thread runs meanwhile would become a part of the trace.
_TURN = threading.RLock()


def _turn_of_a_child() -> None:
    """A process that is forked while another thread has its turn would wait for that thread, which it does not have."""
    global _TURN
    _TURN = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turn_of_a_child)


@contextmanager
def evaluated(model: nn.Module, *, freeze: bool = False) -> Iterator[None]:
    """Every submodule in evaluation mode. Afterwards, also after an error, each has its own mode and attributes back.

    The attributes are what a forward may leave behind: tensors that the model keeps for later, or the constants that fx
    hangs on it. freeze: also let parameters take no part in autograd, which saves the memory of what their gradients
    would need. Threads take turns: a second one waits here until the block of the first is over.
    """
    with _TURN, _set_to_evaluation(model, freeze):
        yield


@contextmanager
def _set_to_evaluation(model: nn.Module, freeze: bool) -> Iterator[None]:
    """`evaluated`, in a thread whose turn it is."""
    modules = list(model.modules())
    attributes = [(vars(module), dict(vars(module))) for module in modules]
    attributes += [(vars(module)[name], dict(vars(module)[name])) for module in modules for name in _KEPT]
    trainable = [p for p in model.parameters() if p.requires_grad] if freeze else []
    for module in modules:
        module.training = False
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for now, then in attributes:
            for key in now.keys() - then.keys():
                del now[key]
            now.update(then)
        for parameter in trainable:
            parameter.requires_grad_(True)


def call(model: nn.Module, x: Tensor) -> Tensor:
    """model(x) for a module that may write into its input: it gets a copy."""
    return model(x.clone())  # type: ignore[no-any-return]


def subject(model: nn.Module) -> nn.Module:
    """The module that is computed with: the given one, or a copy of it in one type of at least single precision.

    A copy is needed where numbers of half precision, or of several precisions, are stored, and where the module was
    made in inference mode. It holds the same numbers; what is said of it holds for them, not for the rounding of a
    half-precision module's own arithmetic.
    """
    check_module(model)
    tensors = list(chain(model.parameters(), model.buffers()))
    dtypes = {t.dtype for t in tensors if t.is_floating_point()}
    wanted = torch.float64 if torch.float64 in dtypes else torch.float32
    if dtypes <= {wanted} and not any(t.is_inference() for t in tensors):
        return model
    try:
        with _TURN:  # otherwise another thread's evaluation mode and frozen parameters would be copied
            return copy.deepcopy(model).to(wanted)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a deep copy runs the code of every attribute's class, which may raise anything
        raise UnsupportedOperationError(
            f"the model cannot be copied to {wanted}, in which it would be computed with: {error}. "
            "Convert it with .float() before."
        ) from error


def like(model: nn.Module | Network, other: Any = None) -> Tensor:
    """Some number of the model, for its dtype and device; without any, of `other`'s, if that is a tensor of floats."""
    if isinstance(model, Network):
        values = chain.from_iterable(vars(node).values() for node in model.nodes)
        tensors: Iterable[Tensor] = (value for value in values if isinstance(value, Tensor))
    else:
        tensors = chain(model.parameters(), model.buffers())
    none = torch.empty(0, dtype=torch.float32)
    if isinstance(other, Tensor) and other.is_floating_point():
        none = other.new_empty(0, dtype=torch.promote_types(other.dtype, torch.float32))
    return next((t.detach() for t in tensors if t.is_floating_point()), none)


def known_input_shape(model: nn.Module) -> tuple[int, ...] | None:
    """The shape of one input, if the model says it: in `input_shape`, or in the `input_shape` of its `spec`."""
    for owner in (model, getattr(model, "spec", None)):
        shape = getattr(owner, "input_shape", None)
        if isinstance(shape, tuple | list) and shape and all(isinstance(n, int) and n > 0 for n in shape):
            return tuple(shape)
    return None


def check_module(model: nn.Module) -> None:
    """Refuse what is no module of real numbers on one device."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedOperationError(
            "a TorchScript module cannot be traced; pass the nn.Module that it was made from."
        )
    if not isinstance(model, nn.Module):
        raise UnsupportedOperationError(f"the model must be a torch.nn.Module, got {type(model).__name__}.")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedOperationError(
                f"the layer {name!r} is a TorchScript module, which cannot be traced; use the nn.Module that it was "
                "made from."
            )
    tensors = list(chain(model.parameters(), model.buffers()))
    if any(nn.parameter.is_lazy(t) for t in tensors):
        raise UnsupportedOperationError("the model has lazy layers without weights; run it once on an input first.")
    if any(t.is_meta for t in tensors):
        raise UnsupportedOperationError(
            "the model is on the meta device, which holds no numbers; load its weights onto a real device first."
        )
    if any(t.is_complex() for t in tensors):
        raise UnsupportedOperationError("the model has complex weights; only networks of real numbers are supported.")
    devices = sorted({str(t.device) for t in tensors})
    if len(devices) > 1:
        raise UnsupportedOperationError(
            f"the model is on several devices ({', '.join(devices)}); move it to one with model.to(device)."
        )
