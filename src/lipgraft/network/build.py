"""`trace`: any nn.Module in the supported set becomes a `Network`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.network.calls import Traced
from lipgraft.network.evaluate import evaluate
from lipgraft.network.evaluation import call, check_module, evaluated, like
from lipgraft.network.graph import Graft, Network, Planar
from lipgraft.network.lowering import lower
from lipgraft.network.precision import full_precision
from lipgraft.network.recording import check_calls
from lipgraft.network.rewrite import expanded
from lipgraft.network.rounding import last_rounding, rounding_tolerance
from lipgraft.network.tracing import RECOMPUTE_WEIGHTS, trace_calls

# Shapes are found on a batch of this size: not 1, so that a lost batch axis shows.
_EXAMPLES = 3
_BOXES = 32
"""How many boxes of a batch are compared: few beside the work of bounding them."""
_CHECK_SCALES = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


def trace(
    model: nn.Module,
    input_shape: Sequence[int],
    *,
    check: bool = True,
    expand: bool = True,
    fold: bool = True,
    products: bool = False,
) -> Network:
    """The graph of a model in evaluation mode. input_shape: of one input, without the batch axis.

    Weights are live references: a change in place (an optimiser's step) shows in the graph, except where they were
    merged with a BatchNorm. check: compare the graph with the model on a few random inputs.
    expand: write max pooling as affine nodes and ReLUs, which is what every other part of lipgraft expects.
    fold: merge each BatchNorm with the layer before it; otherwise it is a Scale of its own.
    products: results of the network may be multiplied with each other (`Planar` nodes), which few parts of lipgraft can
        deal with; otherwise such a network is refused.
    """
    if not input_shape or any(not isinstance(n, int) or n < 1 for n in input_shape):
        raise SettingsError(f"input_shape must be the positive sizes of one input, got {tuple(input_shape)}.")
    check_module(model)
    with evaluated(model), full_precision():
        traced, network = _lowered(model, input_shape, fold)
        network = expanded(network, like(model)) if expand else network
        if not products:
            _refuse_products(network)
        if check:
            _compare(network, model, _anywhere(network, model), boxes=0)
            _check_one(network, traced)
    return network


def trace_in_double(model: nn.Module, input_shape: Sequence[int]) -> Network:
    """The graph of `trace`, products and all, with detached numbers in double precision.

    They are those that the model stores, or computes of what it stores in its own precision (quantised weights, weight
    norm). Only what the graph itself makes of them is computed in double precision: BatchNorm and normalisation as a
    scale and a shift, merged with the layer before.
    """
    check_module(model)
    with evaluated(model), full_precision():
        _, network = _lowered(model, input_shape, fold=True, dtype=torch.float64)
        return expanded(network).to(dtype=torch.float64)


def _lowered(
    model: nn.Module, input_shape: Sequence[int], fold: bool, dtype: torch.dtype | None = None
) -> tuple[Traced, Network]:
    traced = trace_calls(model)
    _refresh_weights(model)
    return traced, lower(traced, _random(model, _EXAMPLES, input_shape), fold, dtype)


def trace_within(model: nn.Module, lower: Tensor, upper: Tensor, *, products: bool = False) -> Network:
    """The graph of a model that is asked about boxes: `trace` and `agree`, with one comparison for both."""
    check_module(model)
    with evaluated(model), full_precision():
        traced, network = _lowered(model, tuple(lower.shape[1:]), fold=True)
        network = expanded(network, like(model))
        if not products:
            _refuse_products(network)
        points = _points(model, lower, upper)
        _compare(network, model, torch.cat([points, _anywhere(network, model)]), boxes=len(points))
        _check_one(network, traced)
    return network


def _refuse_products(network: Network) -> None:
    found = next((node.name for node in network.nodes if isinstance(node, Planar)), None)
    if found is not None:
        raise UnsupportedOperationError(
            f"node {found!r} multiplies results of the network with each other, or is a power, sine or floor of one; "
            "only bounds, verification and export support this; other functions that need the graph do not."
        )


def _refresh_weights(model: nn.Module) -> None:
    """Weight norm and pruning in their older form compute a layer's weights in a hook before its forward."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, RECOMPUTE_WEIGHTS):
                hook(module, ())


def _random(model: nn.Module, count: int, input_shape: Sequence[int]) -> Tensor:
    """Normal numbers of the model's device and dtype, the same at every call. Returns (count, *input_shape)."""
    return torch.randn(count, *input_shape, generator=torch.Generator().manual_seed(0)).to(like(model))


def agree(network: Network, model: nn.Module, lower: Tensor, upper: Tensor) -> None:
    """Refuse a graph that differs from its model at the centres, corners or random points of boxes.

    lower, upper: (B, *input_shape), the ends of the boxes. Of many boxes some are looked at, spread over the batch.
    """
    with evaluated(model), full_precision():
        points = _points(model, lower, upper)
        _compare(network, model, points, boxes=len(points))


def _points(model: nn.Module, lower: Tensor, upper: Tensor) -> Tensor:
    """Centres, both ends, random points and random corners of some of the boxes, in the model's type."""
    if len(lower) > _BOXES:
        some = torch.linspace(0, len(lower) - 1, _BOXES, device=lower.device).round().long()
        lower, upper = lower[some], upper[some]
    generator = torch.Generator(lower.device).manual_seed(0)
    share = torch.rand((2, *lower.shape), dtype=lower.dtype, generator=generator, device=lower.device)
    points = [(lower + upper) / 2, lower, upper]
    points += [torch.lerp(lower, upper, weight) for weight in (share[0], share[1].round())]
    x = torch.cat(points)
    return x.to(like(model, x))


def _anywhere(network: Network, model: nn.Module) -> Tensor:
    """Random inputs of several scales."""
    x = torch.randn(len(_CHECK_SCALES), *network.input_shape, generator=torch.Generator().manual_seed(0))
    return (x * torch.tensor(_CHECK_SCALES).reshape(-1, *[1] * (x.ndim - 1))).to(like(model))


@torch.no_grad()
def _compare(network: Network, model: nn.Module, x: Tensor, boxes: int) -> None:
    """Graph and model must agree at every x (B, *input_shape), output by output.

    boxes: how many of them, the first ones, are points of boxes; the others are random inputs.
    """
    expected = call(model, x)
    values = evaluate(network, x)
    got = values[network.output]
    if got.shape != expected.shape:
        raise UnsupportedOperationError(
            f"the traced graph returns shape {tuple(got.shape)} where the model returns {tuple(expected.shape)}; "
            "its forward depends on the batch size."
        )
    expected = expected.to(got)
    difference, tolerance = (got - expected).abs(), max(1e-4, 16 * torch.finfo(x.dtype).eps) * expected.abs()
    # Rounding in the last layer alone is allowed in any case; what else may have happened takes longer to find out.
    same = difference <= tolerance + last_rounding(network, values)
    if bool(same.all()):
        return
    same |= (got == expected) | (got.isnan() & expected.isnan())  # infinities and NaN
    # Where numbers overflow, or weights are not finite, the order of operations decides where inf and NaN end up.
    overflows = torch.stack([~v.flatten(1).isfinite().all(1) for v in values]).any(0)
    same |= overflows[:, None] | (~expected.isfinite() & (not _tensors_finite(network)))
    doubtful = ~same.all(1)  # few points: what rounding can do there takes longer than to evaluate the graph
    rounding = rounding_tolerance(network, [v[doubtful] for v in values])
    same[doubtful] |= difference[doubtful] <= tolerance[doubtful] + rounding
    if not bool(same.all()):
        worst = float(difference.nan_to_num(nan=float("inf"))[~same].max())
        where = "on random inputs" if bool(same[:boxes].all()) else "at points of the box"
        raise UnsupportedOperationError(
            f"the traced graph differs from the model by up to {worst:.3g} {where}; forward must be a deterministic "
            "function of its input alone, without hooks that change values."
        )


@torch.no_grad()
def _check_one(network: Network, traced: Traced) -> None:
    """A single input goes through the model as it goes through the graph: to a vector, by the same calls."""
    x = _random(traced.root, 1, network.input_shape)
    shape: Sequence[int] = ()
    why = ""
    try:
        shape = check_calls(traced, x).shape
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        why = f" ({error})"
    if shape != (1, *network.output_shape):
        got = f"fails{why}" if why else f"returns shape {tuple(shape)}"
        raise UnsupportedOperationError(
            f"for a single input the model {got} where the traced graph returns {(1, *network.output_shape)}; its "
            "forward depends on the batch size."
        )


def _tensors_finite(network: Network) -> bool:
    fields = chain.from_iterable(vars(node).values() for node in network.nodes)
    parts = chain.from_iterable(vars(f).values() if isinstance(f, Graft) else (f,) for f in fields)
    return all(bool(t.isfinite().all()) for t in parts if isinstance(t, Tensor))
