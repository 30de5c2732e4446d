"""`bound`: one verb for every method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import get_args

import torch
from torch import Tensor, nn

from lipgraft.bounds.alpha_crown import alpha_crown
from lipgraft.bounds.ascent import AlphaSettings
from lipgraft.bounds.crown import Neurons, Prepared, prepare, specification_bounds
from lipgraft.bounds.geometry import plan
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.memory import Late, chunked, never
from lipgraft.bounds.sound import guard_lower, guard_upper
from lipgraft.box import Box
from lipgraft.display import table
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.inputs import reals, settings_of
from lipgraft.network import Network, full_precision, subject, trace_within

NEURONS = get_args(Neurons)
CROSSED = 1e-3
"""How far the ends of a given bound may have crossed, as a share of their size: more than rounding does."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """lower, upper: (B, n), or (B, S) with a specification; layers: pre-activation bounds by activation name."""

    lower: Tensor
    upper: Tensor
    layers: dict[str, Interval]

    def __repr__(self) -> str:
        boxes, outputs = self.lower.shape
        width = float((self.upper - self.lower).mean()) if self.lower.numel() else 0.0
        return f"<Bounds of {outputs} outputs over {boxes} boxes, {width:.4g} wide on average>"

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                lower[0].numel(),
                f"{((lower < 0) & (upper > 0)).float().mean():.1%}",
                f"{(upper - lower).mean():.4g}",
            )
            for name, (lower, upper) in self.layers.items()
        ]
        rows.append(("output", self.lower.shape[1], "", f"{(self.upper - self.lower).mean():.4g}"))
        return table(repr(self)[1:-1], ("layer", "neurons", "sign undecided", "mean width"), rows)


Method = Callable[[Prepared, Tensor, AlphaSettings, Late], Tensor]


def _by_interval(prepared: Prepared, C: Tensor, settings: AlphaSettings, late: Late) -> Tensor:
    """C f by interval arithmetic on the output alone: C+ lower + C- upper."""
    lower, upper = (end[:, None, :, None] for end in prepared.intervals[prepared.network.output])
    return (C.clamp(min=0) @ lower + C.clamp(max=0) @ upper).squeeze(-1)


def _by_crown(prepared: Prepared, C: Tensor, settings: AlphaSettings, late: Late) -> Tensor:
    return specification_bounds(prepared, C)


def _by_alpha(prepared: Prepared, C: Tensor, settings: AlphaSettings, late: Late) -> Tensor:
    return alpha_crown(prepared, C, settings, late)


# method: (whether intermediate layers are refined backward, how specifications are bounded)
METHODS: dict[str, tuple[bool, Method]] = {
    "ibp": (False, _by_interval),
    "crown-ibp": (False, _by_crown),
    "crown": (True, _by_crown),
    "alpha-crown": (True, _by_alpha),
}


def bound(
    model: nn.Module | Network,
    box: Box,
    method: str = "crown",
    C: Tensor | None = None,
    *,
    neurons: Neurons = "needed",
    layers: Mapping[str, Interval] | None = None,
    alpha: AlphaSettings | None = None,
    dtype: torch.dtype | None = None,
) -> Bounds:
    """Bounds of the network's outputs, or of C f(x), over every box of a batch.

    model: any module of supported operations, or a traced Network. method: a key of METHODS. C: (S, n) or (B, S, n).
    neurons: "needed" computes tight bounds only where the result depends on them, "all" everywhere (for `layers`).
    layers: known pre-activation bounds by activation name. dtype: torch.float64 for double precision; by default the
    more precise of the model's and the box's, and at least single precision.
    NaN or infinity anywhere ends in infinite bounds, never in finite ones.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        >>> x = torch.rand(4, 2)
        >>> bounds = lg.bound(model, lg.Box.linf(x, 0.1))
        >>> bounds.lower.shape, bool(((bounds.lower <= model(x)) & (model(x) <= bounds.upper)).all())
        (torch.Size([4, 2]), True)
    """
    if method not in METHODS:
        raise SettingsError(unknown_name("bound method", method, list(METHODS)))
    if neurons not in NEURONS:
        raise SettingsError(unknown_name("choice of neurons", neurons, list(NEURONS)))
    if not isinstance(box, Box):
        raise SettingsError(
            f"the box must be a lipgraft.Box, got a {type(box).__name__}; make one by Box(lower, upper) or "
            "Box.linf(x, eps)."
        )
    alpha = settings_of(alpha, AlphaSettings, AlphaSettings(), "alpha")
    with full_precision():
        return _bound(_network(model, box), box, method, C, neurons, layers, alpha, dtype)


def _network(model: nn.Module | Network, box: Box) -> Network:
    """The graph of the model, which has been seen to agree with it in the boxes."""
    if isinstance(model, Network):
        return model
    return trace_within(subject(model), box.lower, box.upper, products=True)


def _bound(
    network: Network,
    box: Box,
    method: str,
    C: Tensor | None,
    neurons: Neurons,
    layers: Mapping[str, Interval] | None,
    alpha: AlphaSettings,
    dtype: torch.dtype | None,
) -> Bounds:
    """`bound` of a graph, in full precision."""
    if tuple(box.lower.shape[1:]) != network.input_shape:
        raise SettingsError(
            f"the box holds inputs of shape {tuple(box.lower.shape[1:])}, the network takes {network.input_shape}."
        )
    known = _given(layers or {}, network, len(box))
    dtype = dtype or _more_precise(network, box)
    network, box = network.to(dtype=dtype), box.to(dtype=dtype)
    with torch.no_grad():
        backward, specify = METHODS[method]
        prepared = prepare(network, box, backward=backward, neurons=neurons, layers=known)
        rows = _specification(C, network.output_shape[0], box)
        both = torch.stack([rows, -rows], 1)
        result = bound_specification(prepared, both, specify, alpha)
    return Bounds(guard_lower(result[:, 0]), guard_upper(-result[:, 1]), prepared.layers())


def _given(layers: Mapping[str, Interval], network: Network, boxes: int) -> dict[str, Interval]:
    """The known bounds of pre-activations, which must fit the network and the boxes and contain something.

    NaN and infinity are taken for no bound. Rounding may have crossed the ends of a neuron that is constant in the box.
    """
    shapes = {node.name: (boxes, *network.nodes[node.inputs[0]].shape) for _, node in network.activations()}
    known: dict[str, Interval] = {}
    for name, interval in layers.items():
        if name not in shapes:
            raise SettingsError(unknown_name("activation", name, list(shapes)))
        what = f"the bounds of layer {name!r}"
        if not isinstance(interval, tuple | list) or len(interval) != 2:
            raise SettingsError(f"{what} must be a pair (lower, upper), got a {type(interval).__name__}.")
        lower, upper = (reals(end, what, f"real numbers of shape {shapes[name]}") for end in interval)
        for end in (lower, upper):
            if tuple(end.shape) != shapes[name]:
                raise SettingsError(f"{what} must have shape {shapes[name]} each, got {tuple(end.shape)}.")
        crossed = lower - upper.to(lower) > CROSSED * (1 + torch.maximum(lower.abs(), upper.to(lower).abs()))
        if bool(crossed.any()):
            raise SettingsError(f"{what} contradict each other: lower is above upper for {int(crossed.sum())} neurons.")
        known[name] = lower, upper
    return known


def _more_precise(network: Network, box: Box) -> torch.dtype:
    """The dtype that holds both the weights and the box without rounding, and is no half precision."""
    least = torch.promote_types(box.lower.dtype, torch.float32)
    weights = (value for node in network.nodes for value in vars(node).values() if isinstance(value, Tensor))
    return reduce(torch.promote_types, (w.dtype for w in weights if w.is_floating_point()), least)


def _specification(C: Tensor | None, outputs: int, box: Box) -> Tensor:
    """C as (B, S, n)."""
    like = box.lower
    wanted = f"(S, {outputs}) or ({len(box)}, S, {outputs})"
    rows = torch.eye(outputs, dtype=like.dtype, device=like.device) if C is None else reals(C, "C", wanted).to(like)
    if rows.ndim == 2:
        rows = rows.expand(len(box), -1, -1)
    if rows.ndim != 3 or len(rows) != len(box) or rows.shape[2] != outputs:
        raise SettingsError(f"C must be {wanted}, got shape {tuple(rows.shape)}.")
    return rows


def bound_specification(
    prepared: Prepared, C: Tensor, specify: Method, settings: AlphaSettings, late: Late = never
) -> Tensor:
    """Lower bounds of C f, (B, G, S, n) -> (B, G, S), in pieces that fit the memory. late: ends optimisation early."""
    out = C.new_empty(C.shape[:3])
    path = plan(prepared.network, prepared.network.output)
    # Optimising keeps every layer's rows for the gradient; the plan counts only the two largest.
    scale = 4 if specify is _by_alpha else 1

    def work(problems: slice, rows: slice) -> None:
        out[problems, :, rows] = specify(prepared.at(problems), C[problems, :, rows], settings, late)

    chunked(len(C), C.shape[2], path.floats * C.shape[1] * C.element_size() * scale, C.device, work, parallel=True)
    return out
