"""Plain CROWN in float64, one image at a time, with rows over whole layers: slow, short and independent of the engine.

Nothing here knows of windows, chunks, selected neurons or transposed convolutions. A node's transpose is the vjp that
autograd finds for its forward; intervals use the split into positive and negative weights; s-shaped tangents are found
by plain bisection. What is shared with the engine is the graph, and the documented choices: intervals come from refined
earlier bounds, only neurons that the interval leaves unstable are refined, the lower line of a ReLU has slope 1 or the
negative slope, the tangents of sigmoid and tanh touch in the middle or pass through the ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.box import Box
from lipgraft.network.graph import Activation, Add, Conv, Input, Linear, Network, Node, Pad, Reshape, Scale

Interval = tuple[Tensor, Tensor]
Lines = tuple[Tensor, Tensor, Tensor, Tensor]  # lower slope, lower intercept, upper slope, upper intercept


@dataclass
class Known:
    """What is known of one image: values at the centre of its box; by node, intervals and the lines of activations.

    Everything is (1, *shape).
    """

    network: Network
    values: list[Tensor]
    intervals: dict[int, Interval] = field(default_factory=dict)
    lines: dict[int, Lines] = field(default_factory=dict)

    def add(self, i: int, interval: Interval) -> None:
        """Node i's interval; an activation's lines follow from its input's."""
        self.intervals[i] = interval
        node = self.network.nodes[i]
        if isinstance(node, Activation):
            self.lines[i] = lines_of(node, self.intervals[node.inputs[0]])


@dataclass
class Reference:
    """lower, upper: (S,), bounds of the specification."""

    lower: Tensor
    upper: Tensor
    known: Known


# --- the meaning of a node -----------------------------------------------------------------------------------------


def forward(node: Node, xs: list[Tensor]) -> Tensor:
    """The value of an affine node, each x (N, *shape)."""
    match node:
        case Conv():
            return F.conv2d(xs[0], node.weight, node.bias, node.stride, node.padding, node.dilation, node.groups)
        case Linear():
            return xs[0] @ node.weight.T + (0 if node.bias is None else node.bias)
        case Add():
            return xs[0] + xs[1]
        case Scale():
            return xs[0] * node.scale + node.shift
        case Pad():
            return F.pad(xs[0], node.pads)
        case Reshape():
            return xs[0].reshape(-1, *node.shape)
    raise AssertionError(node)


def activate(node: Activation, z: Tensor) -> Tensor:
    """The activation's value, grafted neurons on their line."""
    curve = {
        "relu": lambda: z.clamp(min=0),
        "leaky-relu": lambda: torch.where(z > 0, z, node.curve.slopes[0] * z),
        "sigmoid": lambda: 1 / (1 + torch.exp(-z)),
        "tanh": lambda: torch.tanh(z),
    }[node.kind]()
    if node.graft is None:
        return curve
    return torch.where(node.graft.mask, node.graft.gamma * z + node.graft.omega, curve)


def values_of(network: Network, x: Tensor) -> list[Tensor]:
    """The value of every node at one point, (1, *shape)."""
    values: list[Tensor] = []
    for node in network.nodes:
        inputs = [values[j] for j in node.inputs]
        match node:
            case Input():
                values.append(x)
            case Activation():
                values.append(activate(node, inputs[0]))
            case _:
                values.append(forward(node, inputs))
    return values


def transpose(network: Network, node: Node, rows: Tensor) -> tuple[list[Tensor], Tensor]:
    """Rows on an affine node's value -> rows on each of its inputs, and what the constant adds: (R, *), (R,)."""
    xs = [torch.zeros(len(rows), *network.nodes[j].shape, dtype=torch.float64) for j in node.inputs]
    for x in xs:
        x.requires_grad_()
    with torch.enable_grad():
        y = forward(node, xs)
        back = torch.autograd.grad(y, xs, rows)
    return list(back), (rows * y.detach()).flatten(1).sum(1)


# --- intervals -----------------------------------------------------------------------------------------------------


def interval_of(node: Node, inputs: list[Interval]) -> Interval:
    """Interval arithmetic: W+ l + W- u + b and W+ u + W- l + b."""
    match node:
        case Conv() | Linear():
            return _signed(node, inputs[0], False), _signed(node, inputs[0], True)
        case Scale():
            ends = [end * node.scale + node.shift for end in inputs[0]]
            return torch.minimum(*ends), torch.maximum(*ends)
        case Activation():
            lb, ub = inputs[0]
            candidates = [activate(node, lb), activate(node, ub)]
            # The only place where a curve here can turn is the kink at zero.
            kink = activate(node, torch.zeros_like(lb))
            straddles = (lb < 0) & (ub > 0)
            grafted = torch.zeros_like(straddles) if node.graft is None else node.graft.mask
            candidates.append(torch.where(straddles & ~grafted, kink, candidates[0]))
            return torch.stack(candidates).amin(0), torch.stack(candidates).amax(0)
    return forward(node, [low for low, _ in inputs]), forward(node, [high for _, high in inputs])


def _signed(node: Conv | Linear, interval: Interval, upper: bool) -> Tensor:
    first, second = interval if not upper else interval[::-1]
    parts = []
    for weight, end, bias in ((node.weight.clamp(min=0), first, node.bias), (node.weight.clamp(max=0), second, None)):
        if isinstance(node, Conv):
            parts.append(F.conv2d(end, weight, bias, node.stride, node.padding, node.dilation, node.groups))
        else:
            parts.append(F.linear(end, weight, bias))
    return parts[0] + parts[1]


# --- relaxations ---------------------------------------------------------------------------------------------------


def lines_of(node: Activation, interval: Interval) -> Lines:
    """Lines below and above the activation on the interval, each part (1, *shape)."""
    lb, ub = interval
    if node.kind in ("relu", "leaky-relu"):
        lines = _lines_of_kink(lb, ub, node.curve.slopes[0])
    else:
        lines = _lines_of_curve(node.kind, lb, ub)
    if node.graft is None:
        return lines
    mask, gamma, omega = node.graft.mask, node.graft.gamma, node.graft.omega
    a, b, c, d = lines
    return (
        torch.where(mask, gamma, a),
        torch.where(mask, omega, b),
        torch.where(mask, gamma, c),
        torch.where(mask, omega, d),
    )


def _lines_of_kink(lb: Tensor, ub: Tensor, a: float) -> Lines:
    one, below, zero = torch.ones_like(lb), torch.full_like(lb, a), torch.zeros_like(lb)
    straddles = (lb < 0) & (ub > 0)
    stable = torch.where(lb >= 0, one, below)
    adaptive = torch.where(ub > -lb, one, below)
    chord = (ub - a * lb) / torch.where(straddles, ub - lb, one)
    upper = torch.where(straddles, chord, stable)
    return torch.where(straddles, adaptive, stable), zero, upper, torch.where(straddles, ub - chord * ub, zero)


def _lines_of_curve(kind: str, lb: Tensor, ub: Tensor) -> Lines:
    """Upper lines here; a lower line is the upper line of the mirrored curve -f(-z) + 2 f(0) on [-ub, -lb]."""
    up_slope, up_intercept = _upper_line(kind, lb, ub)
    low_slope, low_intercept = _upper_line(kind, -ub, -lb)
    middle = 1.0 if kind == "sigmoid" else 0.0  # f(z) = middle - f(-z)
    return low_slope, middle - low_intercept, up_slope, up_intercept


def _upper_line(kind: str, lb: Tensor, ub: Tensor) -> tuple[Tensor, Tensor]:
    def f(z: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-z)) if kind == "sigmoid" else torch.tanh(z)

    def slope_at(z: Tensor) -> Tensor:
        return f(z) * (1 - f(z)) if kind == "sigmoid" else 1 - f(z) ** 2

    # The tangent through (lb, f(lb)) touches at a t in [0, -lb]: its value at lb grows with t.
    low, high = torch.zeros_like(lb), lb.abs()
    for _ in range(100):
        t = (low + high) / 2
        above = f(t) + slope_at(t) * (lb - t) >= f(lb)
        low, high = torch.where(above, low, t), torch.where(above, t, high)
    touch = torch.where(lb >= 0, (lb + ub) / 2, high)
    width = ub - lb
    chord = (f(ub) - f(lb)) / torch.where(width > 0, width, torch.ones_like(width))
    use_chord = (lb < 0) & (touch >= ub)
    slope = torch.where(use_chord, chord, slope_at(touch))
    point = torch.where(use_chord, lb, touch)
    intercept = f(point) - slope * point
    # Narrow intervals: the tangent in the middle, moved up by the most that the curvature allows.
    middle, bend = (lb + ub) / 2, 0.0963 if kind == "sigmoid" else 0.7699
    narrow = width < 1e-3
    moved = f(middle) - slope_at(middle) * middle + bend * width**2 / 8
    return torch.where(narrow, slope_at(middle), slope), torch.where(narrow, moved, intercept)


def is_unstable(node: Activation, interval: Interval) -> Tensor:
    """Where a tighter bound changes the lines."""
    lb, ub = interval
    curved = (lb < 0) & (ub > 0) if node.kind in ("relu", "leaky-relu") else lb != ub
    return curved if node.graft is None else curved & ~node.graft.mask


# --- backward substitution -----------------------------------------------------------------------------------------


def minimum(known: Known, target: int, rows: Tensor) -> Tensor:
    """Lower bounds of sum(rows * value of target) over the box: rows (R, *shape) -> (R,)."""
    const = torch.zeros(len(rows), dtype=torch.float64)
    waiting: dict[int, Tensor] = {target: rows}
    for i in range(target, 0, -1):
        if i not in waiting:
            continue
        node, here = known.network.nodes[i], waiting.pop(i)
        if isinstance(node, Activation):
            low_slope, low_intercept, up_slope, up_intercept = known.lines[i]
            positive, negative = here.clamp(min=0), here.clamp(max=0)
            const = const + (positive * low_intercept + negative * up_intercept).flatten(1).sum(1)
            back = [positive * low_slope + negative * up_slope]
        else:
            back, added = transpose(known.network, node, here)
            const = const + added
        for j, part in zip(node.inputs, back, strict=True):
            waiting[j] = waiting[j] + part if j in waiting else part
    lower, upper = known.intervals[0]
    return const + (waiting[0].clamp(min=0) * lower + waiting[0].clamp(max=0) * upper).flatten(1).sum(1)


def cut(known: Known, target: int, interval: Interval, index: Tensor, sign: int) -> Interval:
    """The interval with the lower (sign 1) or upper (-1) backward bounds of some neurons: index (R,), flat."""
    node = known.network.nodes[target]
    if isinstance(node, Activation):  # an activation that another one reads
        known.lines[target] = lines_of(node, known.intervals[node.inputs[0]])
    rows = sign * F.one_hot(index, math.prod(node.shape)).double().reshape(-1, *node.shape)
    bound = minimum(known, target, rows)
    lb, ub = (end.flatten().clone() for end in interval)
    if sign > 0:
        lb[index] = torch.maximum(lb[index], bound)
    else:
        ub[index] = torch.minimum(ub[index], -bound)
    return lb.reshape(1, *node.shape), ub.reshape(1, *node.shape)


def refined(known: Known, target: int, interval: Interval, only: Tensor | None = None) -> Interval:
    """What the activations that read the node need: backward bounds of the neurons that the interval leaves unstable.

    Of a kinked activation, first the bound that could settle the neuron, the lower one if it is positive at the centre
    of the box; the other bound if the neuron is unstable still. Of a curved one, both. only: (n,) boolean, look at
    these neurons alone.
    """
    readers = readers_of(known.network)[target]

    def wanted() -> Tensor:
        found = torch.stack([is_unstable(act, interval) for act in readers]).any(0).flatten()
        return found if only is None else found & only

    if not all(act.kind in ("relu", "leaky-relu") for act in readers):
        index = wanted().nonzero().flatten()
        return cut(known, target, cut(known, target, interval, index, 1), index, -1)
    positive = known.values[target].flatten() > 0
    for settled_from_below in (positive, ~positive):
        mine = wanted()
        interval = cut(known, target, interval, (mine & settled_from_below).nonzero().flatten(), 1)
        interval = cut(known, target, interval, (mine & ~settled_from_below).nonzero().flatten(), -1)
    return interval


def readers_of(network: Network) -> dict[int, list[Activation]]:
    """The activations that read each node."""
    readers: dict[int, list[Activation]] = {}
    for _, node in network.activations():
        readers.setdefault(node.inputs[0], []).append(node)
    return readers


def reference_crown(network: Network, lower: Tensor, upper: Tensor, C: Tensor, *, every: bool = False) -> Reference:
    """CROWN on one box. lower, upper: (1, *input shape); C: (S, n). every: both bounds of all neurons."""
    known, readers = Known(network, values_of(network, (lower + upper) / 2)), readers_of(network)
    for i, node in enumerate(network.nodes):
        if isinstance(node, Input):
            known.add(i, (lower, upper))
            continue
        interval = interval_of(node, [known.intervals[j] for j in node.inputs])
        if i in readers and every:
            for sign in (1, -1):
                interval = cut(known, i, interval, torch.arange(interval[0].numel()), sign)
        elif i in readers:
            interval = refined(known, i, interval)
        known.add(i, interval)
    out = network.output
    return Reference(minimum(known, out, C), -minimum(known, out, -C), known)


def reference_batch(network: Network, box: Box, C: Tensor, *, every: bool = False) -> list[Reference]:
    """`reference_crown` of every box, in float64. C: (S, n)."""
    network, box = network.to(dtype=torch.float64), box.to(dtype=torch.float64)
    pairs = zip(box.lower.split(1), box.upper.split(1), strict=True)
    return [reference_crown(network, low, high, C.double(), every=every) for low, high in pairs]
