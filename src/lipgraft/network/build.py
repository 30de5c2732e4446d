"""`trace`: any nn.Module in the supported set becomes a `Network`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.network.evaluate import evaluate
from lipgraft.network.graph import Graft, Network
from lipgraft.network.lowering import lower
from lipgraft.network.precision import full_precision
from lipgraft.network.rewrite import expanded
from lipgraft.network.tracing import evaluation_mode, trace_fx

# Shapes are found on a batch of this size: not 1, so that a lost batch axis shows.
_EXAMPLES = 3
_CHECK_SCALES = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


def trace(model: nn.Module, input_shape: Sequence[int], *, check: bool = True, expand: bool = True) -> Network:
    """The graph of a model in evaluation mode. input_shape: of one input, without the batch axis.

    Weights are live references: a change in place (an optimiser's step) shows in the graph, except where they were
    merged with a BatchNorm. check: compare the graph with the model on a few random inputs.
    expand: write max pooling as affine nodes and ReLUs, which is what every other part of lipgraft expects.
    """
    if not input_shape or any(not isinstance(n, int) or n < 1 for n in input_shape):
        raise SettingsError(f"input_shape must be the positive sizes of one input, got {tuple(input_shape)}.")
    with evaluation_mode(model), full_precision():
        network = lower(trace_fx(model), _random(model, _EXAMPLES, input_shape))
        network = expanded(network) if expand else network
        if check:
            _check(network, model)
    return network


def _random(model: nn.Module, count: int, input_shape: Sequence[int]) -> Tensor:
    """Normal numbers of the model's device and dtype, the same at every call. Returns (count, *input_shape)."""
    tensors = chain(model.parameters(), model.buffers())
    like = next((t for t in tensors if t.is_floating_point()), torch.empty(0))
    return torch.randn(count, *input_shape, generator=torch.Generator().manual_seed(0)).to(like)


@torch.no_grad()
def _check(network: Network, model: nn.Module) -> None:
    """Graph and model must agree on inputs of several scales, up to rounding."""
    x = _random(model, len(_CHECK_SCALES), network.input_shape)
    x = x * torch.tensor(_CHECK_SCALES).to(x).reshape(-1, *[1] * (x.ndim - 1))
    expected = model(x.clone())
    values = evaluate(network, x)
    got = values[network.output]
    if got.shape != expected.shape:
        raise UnsupportedOperationError(
            f"the traced graph returns shape {tuple(got.shape)} where the model returns {tuple(expected.shape)}; "
            "its forward depends on the batch size."
        )
    # Rounding errors are relative to the largest number on the way: a small output may be a difference of large ones.
    unit = torch.finfo(x.dtype).eps
    rtol = max(1e-4, 16 * unit)
    atol = rtol * _magnitude([expected]) + 100 * unit * _magnitude(values)
    same = torch.isclose(got, expected.to(got), rtol=rtol, atol=atol, equal_nan=True)
    if not _tensors_finite(network):  # the order of operations decides where inf and NaN end up
        same |= ~(got.isfinite() & expected.isfinite())
    if not bool(same.all()):
        worst = float((got - expected).abs().nan_to_num(nan=float("inf")).max())
        raise UnsupportedOperationError(
            f"the traced graph differs from the model by up to {worst:.3g} on random inputs; forward must be a "
            "deterministic function of its input alone, without hooks that change values."
        )


def _magnitude(values: list[Tensor]) -> float:
    """The largest finite number in sight."""
    return max(float(v.abs().nan_to_num(nan=0.0, posinf=0.0).max()) for v in values)


def _tensors_finite(network: Network) -> bool:
    fields = chain.from_iterable(vars(node).values() for node in network.nodes)
    parts = chain.from_iterable(vars(f).values() if isinstance(f, Graft) else (f,) for f in fields)
    return all(bool(t.isfinite().all()) for t in parts if isinstance(t, Tensor))
