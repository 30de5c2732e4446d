"""Networks built to break verifiers, with exact answers.

A family is a function that makes a network from random numbers and knows its extremes over every box. To add one, write
such a function under `@family`: every test of this folder then asks it. Everything is drawn from the family's name and
a number, so the same networks come in every run.

Inputs, radii and most weights are multiples of powers of two, so that boxes are exact in float32, and kinks lie between
the values that inputs can take: no answer hangs on the last bit, and no corner of a box lies on a kink.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from closed_forms import Block, always, coordinate, least_differences, linear, output_range, row_norms, worst_points
from exact_milp import double, least, least_margin
from lipgraft.box import Box
from lipgraft.grafting import GraftedActivation
from lipgraft.network import Network

CLEAR = 1e-4  # of the largest numbers in a network; a margin closer to zero than that may be rounded to either side
GRID = 256  # inputs and radii are multiples of 1 / GRID
WIDEST = 0.75


class Exact(Protocol):
    """Exact extremes over boxes (B, d), in double precision."""

    def margins(self, lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
        """The least of the true class's output minus the strongest other one: (B,)."""

    def outputs(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the greatest of every output: (B, n) each."""


@dataclass(frozen=True, eq=False)
class Closed:
    """Extremes in closed form."""

    blocks: Sequence[Block]

    def margins(self, lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
        differences = least_differences(self.blocks, lower, upper)[torch.arange(len(y)), y]
        return differences.scatter(1, y[:, None], torch.inf).amin(1)

    def outputs(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return output_range(self.blocks, lower, upper)

    def norms(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The largest l1 norm of every output's gradient: (B, n)."""
        return row_norms(self.blocks, lower, upper)

    def worst(self, lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
        """Where the margin is least: (B, d)."""
        differences = least_differences(self.blocks, lower, upper)[torch.arange(len(y)), y]
        other = differences.scatter(1, y[:, None], torch.inf).argmin(1)
        return worst_points(self.blocks, lower, upper, y, other)


@dataclass(frozen=True, eq=False)
class Programmed:
    """Extremes by mixed-integer programs, one for each number: slow, for networks without a closed form."""

    network: Network

    def margins(self, lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
        found = [least_margin(self.network, *ends, int(label)) for *ends, label in zip(lower, upper, y, strict=True)]
        return torch.tensor(found, dtype=torch.float64)

    def outputs(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        rows = np.eye(self.network.output_shape[0])
        ends = [least(self.network, *box, np.vstack([rows, -rows])) for box in zip(lower, upper, strict=True)]
        low, high = torch.tensor(np.array(ends)).chunk(2, 1)
        return low, -high


@dataclass(frozen=True, eq=False)
class Net:
    """model: in float32, takes inputs of this shape from [low, high]. exact: of the flattened inputs.

    complete: whether the verifier must decide every clear question; otherwise it may also say that it does not know.
    near: a point (d,) where something is hidden; half of the questions are asked around it.
    """

    model: nn.Module
    shape: tuple[int, ...]
    exact: Closed | Programmed
    low: float | None = 0.0
    high: float | None = 1.0
    complete: bool = True
    near: Tensor | None = None


@dataclass(frozen=True)
class Family:
    """images: questions to each of its networks; half of them are robust, half have a counterexample.

    closed: whether its answers are in closed form, Lipschitz constants included.
    """

    name: str
    make: Callable[[Draw], Net]
    networks: int
    images: int
    closed: bool


FAMILIES: dict[str, Family] = {}


def family(
    networks: int = 4, images: int = 24, *, closed: bool = True
) -> Callable[[Callable[[Draw], Net]], Callable[[Draw], Net]]:
    def register(make: Callable[[Draw], Net]) -> Callable[[Draw], Net]:
        FAMILIES[make.__name__] = Family(make.__name__, make, networks, images, closed)
        return make

    return register


class Case(NamedTuple):
    """A network and questions to it: x (B, *shape), y (B,), eps (B,), with boxes (B, d) and exact margins (B,)."""

    net: Net
    x: Tensor
    y: Tensor
    eps: Tensor
    lower: Tensor
    upper: Tensor
    margin: Tensor
    scale: float

    @property
    def box(self) -> Box:
        """The boxes as inputs of the network, in float32."""
        return Box(*(end.float().reshape(self.x.shape) for end in (self.lower, self.upper)))


def names(*, every: int = 1, closed: bool = False) -> list[tuple[str, int]]:
    """(family, number) of all networks; of one in `every`, the first of each family included; of closed forms only."""
    chosen = [one for one in FAMILIES.values() if one.closed or not closed]
    return [(one.name, k) for one in chosen for k in range(0, one.networks, every)]


@cache
def case(name: str, number: int) -> Case:
    """A family's network of this number, with its questions: half robust, half not, half of each close to the edge."""
    chosen = FAMILIES[name]
    draw = Draw(zlib.crc32(name.encode()) + number, number)
    net = chosen.make(draw)
    net.model.eval()
    return _ask(net, draw, chosen.images)


@cache
def outputs(name: str, number: int) -> tuple[Tensor, Tensor]:
    """The exact least and greatest outputs over the case's boxes: (B, n) each."""
    one = case(name, number)
    return one.net.exact.outputs(one.lower, one.upper)


def _ask(net: Net, draw: Draw, count: int) -> Case:
    closed = isinstance(net.exact, Closed)
    pool = 60 * count if closed else 5 * count
    inputs = int(np.prod(net.shape))
    low, high = -1.0 if net.low is None else net.low, 1.0 if net.high is None else net.high
    x = draw.grid(low, high, pool, inputs)
    border = draw.rng.random((pool, inputs))  # some inputs lie on the border of the range
    x = np.where(border < 0.1, low, np.where(border > 0.9, high, x))
    eps = np.floor(GRID * WIDEST * draw.rng.random(pool) ** 2) / GRID
    if net.near is not None:
        close = net.near.numpy() + draw.grid(-1.0, 1.0, pool, inputs) * eps[:, None] * 1.5
        close = np.clip(np.round(close * GRID) / GRID, low, high)
        x = np.where((draw.rng.random(pool) < 0.5)[:, None], close, x)
    x, eps = torch.tensor(x), torch.tensor(eps)
    lower, upper = x - eps[:, None], x + eps[:, None]
    lower = lower if net.low is None else lower.clamp(min=net.low)
    upper = upper if net.high is None else upper.clamp(max=net.high)
    scale = magnitude(net.model, x.reshape(-1, *net.shape))
    with torch.no_grad():
        logits = net.model(x.float().reshape(-1, *net.shape))
    classes = logits.shape[1]
    wrong = torch.tensor(draw.rng.random(pool) < 0.06)
    y = torch.where(wrong, torch.tensor(draw.rng.integers(classes, size=pool)), logits.argmax(1))
    if closed:
        margin = net.exact.margins(lower, upper, y)
        kept = torch.cat([_select(margin * sign, scale, count // 2) for sign in (1.0, -1.0)])
        kept = kept[torch.tensor(draw.rng.permutation(len(kept)))]
        margin = margin[kept]
    else:
        kept, margin = _search(net.exact, lower, upper, y, scale, count // 2)
    assert len(kept) == count, f"only {len(kept)} clear questions"
    shape = (count, *net.shape)
    return Case(
        net, x[kept].float().reshape(shape), y[kept], eps[kept].float(), lower[kept], upper[kept], margin, scale
    )


def _select(margin: Tensor, scale: float, count: int) -> Tensor:
    """The places of clear positive margins: half of them the smallest, half the first of the others."""
    clear = torch.nonzero(margin > CLEAR * scale)[:, 0]
    nearest = clear[margin[clear].argsort(stable=True)][: count // 2]
    others = clear[~torch.isin(clear, nearest)]
    return torch.cat([nearest, others])[:count]


def _search(exact: Exact, lower: Tensor, upper: Tensor, y: Tensor, scale: float, count: int) -> tuple[Tensor, Tensor]:
    """The first places with clear margins of each sign, asking one question after the other."""
    found: dict[bool, list[tuple[int, float]]] = {True: [], False: []}
    for k in range(len(y)):
        [margin] = exact.margins(lower[k : k + 1], upper[k : k + 1], y[k : k + 1]).tolist()
        if abs(margin) > CLEAR * scale and len(found[margin > 0]) < count:
            found[margin > 0].append((k, margin))
        if len(found[True]) == len(found[False]) == count:
            break
    pairs = sorted(found[True] + found[False])
    return torch.tensor([k for k, _ in pairs]), torch.tensor([m for _, m in pairs], dtype=torch.float64)


@torch.no_grad()
def magnitude(model: nn.Module, x: Tensor) -> float:
    """The largest sum of absolute terms in any linear layer at these points: rounding is a fraction of it."""
    largest = [1.0]

    def see(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        assert isinstance(module, nn.Linear)
        bias = None if module.bias is None else module.bias.abs()
        largest.append(float(nn.functional.linear(args[0].abs(), module.weight.abs(), bias).max()))

    hooks = [module.register_forward_hook(see) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        model(x.float())
    finally:
        for hook in hooks:
            hook.remove()
    return max(largest)


class Draw:
    """Random numbers for one network. number: of the network in its family, to go through choices in turn."""

    def __init__(self, seed: int, number: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.number = number

    def turn(self, *choices: float) -> float:
        """One of the choices, another for each network."""
        return choices[self.number % len(choices)]

    def grid(self, low: float, high: float, *shape: int) -> np.ndarray:
        return self.rng.integers(round(low * GRID), round(high * GRID) + 1, size=shape) / GRID

    def weights(self, *shape: int, most: int = 8) -> Tensor:
        """Multiples of 1/8 between -most/8 and most/8, none of them 0."""
        sizes = self.rng.integers(1, most + 1, size=shape) * self.rng.choice([-1, 1], size=shape)
        return torch.tensor(sizes / 8, dtype=torch.float64)

    def kinks(self, low: float, high: float, *shape: int) -> Tensor:
        """Odd multiples of 2^-14, between the values that sums of eighths of inputs take."""
        whole = self.rng.integers(round(low * 8 * GRID), round(high * 8 * GRID), size=shape)
        return torch.tensor((2 * whole + 1) / (16 * GRID), dtype=torch.float64)

    def biases(self, *shape: int) -> Tensor:
        return torch.tensor(self.grid(-1.0, 1.0, *shape), dtype=torch.float64)


def dense(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def normalisation(draw: Draw, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.BatchNorm1d | nn.BatchNorm2d:
    """The layer with random statistics and weights; falling ones among them."""
    n = norm.num_features
    with torch.no_grad():
        norm.weight.copy_(draw.weights(n, most=16))
        norm.bias.copy_(draw.kinks(-0.25, 0.25, n))
        norm.running_mean.copy_(draw.kinks(-0.5, 0.5, n))
        norm.running_var.copy_(draw.weights(n, most=16).abs())
    return norm


def folded(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The scale and the offset that a BatchNorm is."""
    weight, bias, mean, variance = (
        t.detach().double() for t in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    )
    scale = weight / (variance + norm.eps).sqrt()
    return scale, bias - scale * mean


def total_range(weight: Tensor, low: float = 0.0, high: float = 1.0) -> tuple[float, float]:
    """The range of weight . x for x in [low, high]."""
    ends = torch.stack([weight * low, weight * high])
    return float(ends.amin(0).sum()), float(ends.amax(0).sum())


def hinges(
    weight: Tensor, knots: Tensor, out: Tensor, base: Tensor, sides: Tensor | None = None
) -> tuple[nn.Sequential, Block]:
    """base + out relu(sides (weight . x - knots)): one number of the inputs, hidden neurons that open at the knots."""
    sides = torch.ones_like(knots) if sides is None else sides
    model = nn.Sequential(dense(sides[:, None] * weight, -sides * knots), nn.ReLU(), dense(out, base))
    return model, linear(weight, lambda t: base + (sides * (t[..., None] - knots)).relu() @ out.T, knots.tolist())


def flat(matrix: Tensor, constant: Tensor) -> Closed:
    """The affine function matrix x + constant."""
    inputs = matrix.shape[1]
    blocks = [coordinate(i, inputs, lambda t, i=i: t[..., None] * matrix[:, i]) for i in range(inputs)]
    return Closed([*blocks, always(constant, inputs)])


def curves(inputs: int, curve: Callable[[int, Tensor], Tensor], kinks: Tensor, base: Tensor) -> Closed:
    """base + a curve (number, t) -> (..., n) of every input, with kinks (inputs, K)."""
    blocks = [coordinate(i, inputs, lambda t, i=i: curve(i, t), kinks[i].tolist()) for i in range(inputs)]
    return Closed([*blocks, always(base, inputs)])


def balanced(draw: Draw, net: Net) -> Net:
    """The network with its outputs shifted so that they are equal on average, and inputs decide the class."""
    last = [module for module in net.model.modules() if isinstance(module, nn.Linear)][-1]
    points = torch.tensor(draw.grid(net.low or 0.0, net.high or 1.0, 64, *net.shape))
    with torch.no_grad():
        shift = torch.round(net.model.eval()(points.float()).double().mean(0) * GRID) / GRID
        last.bias.sub_(shift)
    if isinstance(net.exact, Programmed):
        return replace(net, exact=Programmed(double(net.model, net.shape)))
    inputs = points[0].numel()
    return replace(net, exact=Closed([*net.exact.blocks, always(-shift, inputs)]))


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Residual(nn.Module):
    """keep(x) + out(relu(into(x)))."""

    def __init__(self, keep: nn.Module, into: nn.Linear, out: nn.Linear, act: nn.Module | None = None) -> None:
        super().__init__()
        self.keep, self.into, self.out, self.act = keep, into, out, act or nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.keep(x) + self.out(self.act(self.into(x)))
        return result


# Something hidden: a small part of the box, found by no gradient, decides.


@family(networks=6)
def needle(draw: Draw) -> Net:
    """Class 1 wins on a tent of three neurons, as narrow as 1/256 of the range; elsewhere nothing moves."""
    inputs = int(draw.turn(1, 3, 24))
    weight = draw.weights(inputs, most=8 if inputs < 24 else 2)
    low, high = total_range(weight)
    width = 2.0 ** -float(draw.turn(3, 4, 5, 6, 7, 8))
    [middle] = draw.kinks(low + 0.2 * (high - low), high - 0.2 * (high - low), 1).tolist()
    knots = vector(middle - width, middle, middle + width)
    out = torch.outer(vector(0.0, 1.5, -0.5), vector(1.0, -2.0, 1.0) / width)
    model, block = hinges(weight, knots, out, vector(0.5, 0.0, -0.25))
    return Net(model, (inputs,), Closed([block]))


@family()
def comb(draw: Draw) -> Net:
    """Three tents of different heights, some too low to matter, each for a class of its own."""
    weight = draw.weights(int(draw.turn(1, 2, 4, 22)), most=4)
    low, high = total_range(weight)
    places = low + (high - low) * (torch.arange(3, dtype=torch.float64) + 0.5) / 3
    places = torch.floor(places * 8 * GRID) / (8 * GRID) + 1 / (16 * GRID)
    width = max(np.floor((high - low) * 2) / 64, 1 / 64)
    heights = torch.tensor(draw.rng.permutation([0.875, 1.25, 1.5]))
    knots = torch.cat([places - width, places, places + width])
    out = torch.zeros(4, 9, dtype=torch.float64)
    for k in range(3):
        out[k + 1, [k, k + 3, k + 6]] = heights[k] * vector(1.0, -2.0, 1.0) / width
    order = knots.argsort()
    base = vector(1.0, 0.0, 0.0, 0.0)
    model, block = hinges(weight, knots[order], out[:, order], base)
    return Net(model, (len(weight),), Closed([block]))


@family()
def corner(draw: Draw) -> Net:
    """One corner of the range opens a single neuron with a large weight."""
    inputs = int(draw.turn(3, 6, 10, 21))
    weight = draw.weights(inputs, most=1)
    _, top = total_range(weight)
    [knot] = draw.kinks(top - 0.1, top - 0.02, 1).tolist()
    gain = 64.0
    out, base = vector(0.0, gain, -gain)[:, None], vector(0.5, 0.0, 0.25)
    model, block = hinges(weight, vector(knot), out, base)
    return Net(model, (inputs,), Closed([block]), near=(weight > 0).double())


@family()
def staircase(draw: Draw) -> Net:
    """Plateaus with steep steps between them, up and down; each plateau belongs to another class."""
    weight = draw.weights(int(draw.turn(1, 2, 3, 23)), most=4)
    low, high = total_range(weight)
    steps = torch.sort(draw.kinks(low, high, 4)).values
    rise = 1 / 64
    knots = torch.stack([steps, steps + rise], 1).flatten()
    heights = draw.weights(4, 4)
    out = torch.stack([heights, -heights], 2).reshape(4, 8) / rise
    order = knots.argsort()
    model, block = hinges(weight, knots[order], out[:, order], draw.biases(4))
    return Net(model, (len(weight),), Closed([block]))


@family()
def sawtooth(draw: Draw) -> Net:
    """A tent map of the inputs' mean, applied again and again: 2^k linear pieces."""
    folds, inputs = int(draw.turn(2, 3, 4, 5)), int(draw.turn(1, 2))
    mean = torch.full((inputs,), 1 / inputs, dtype=torch.float64)
    fold = vector(2.0, -4.0)
    layers: list[nn.Module] = [dense(mean.repeat(2, 1), vector(0.0, -0.5)), nn.ReLU()]
    for _ in range(folds - 1):
        layers += [dense(fold.repeat(2, 1), vector(0.0, -0.5)), nn.ReLU()]
    slopes, base = vector(1.0, -1.0, 0.0), vector(0.0, 1.0, float(draw.turn(0.4375, 0.5625, 0.6875, 0.59375)))
    layers.append(dense(torch.outer(slopes, fold), base))

    def curve(t: Tensor) -> Tensor:
        for _ in range(folds):
            t = 2 * t.relu() - 4 * (t - 0.5).relu()
        return t[..., None] * slopes + base

    pieces = 2**folds
    kinks = [k / pieces for k in range(pieces + 1)]
    return Net(nn.Sequential(*layers), (inputs,), Closed([linear(mean, curve, kinks)]))


@family()
def nested(draw: Draw) -> Net:
    """relu(relu(... relu(t - a) - b ...) - c): one kink, hidden behind layers that are silent before it."""
    weight = draw.weights(3)
    low, high = total_range(weight)
    depth = int(draw.turn(2, 3, 5, 8))
    [first] = draw.kinks(low, low + 0.4 * (high - low), 1).tolist()
    later = (high - low) / 4 / depth
    later = np.floor(later * 2048) / 2048
    layers: list[nn.Module] = [dense(weight[None], vector(-first)), nn.ReLU()]
    for _ in range(depth):
        layers += [dense(vector(1.0)[None], vector(-later)), nn.ReLU()]
    slopes, base = vector(0.0, 2.0, -1.0), vector(0.5, 0.0, 0.125)
    layers.append(dense(slopes[:, None], base))
    knot = first + depth * later
    block = linear(weight, lambda t: base + (t - knot).relu()[..., None] * slopes, [knot])
    return Net(nn.Sequential(*layers), (3,), Closed([block]))


# Nothing there: large bounds of neurons that cancel, or that do nothing.


@family()
def pairs(draw: Draw) -> Net:
    """relu(z) - relu(-z) = z, layer after layer: a linear function in which every neuron is unstable."""
    inputs, depth = int(draw.turn(2, 4, 3, 22)), int(draw.turn(1, 2, 3, 1))
    matrix, constant = torch.eye(inputs, dtype=torch.float64), torch.zeros(inputs, dtype=torch.float64)
    layers: list[nn.Module] = []
    joined = torch.eye(inputs, dtype=torch.float64)
    for _ in range(depth):
        step, shift = draw.weights(3, matrix.shape[0], most=4), draw.kinks(-1.0, 1.0, 3)
        matrix, constant = step @ matrix, step @ constant + shift
        layers += [dense(torch.cat([step, -step]) @ joined, torch.cat([shift, -shift])), nn.ReLU()]
        joined = torch.cat([torch.eye(3), -torch.eye(3)], 1).double()
    last, base = draw.weights(3, 3), draw.biases(3)
    layers.append(dense(last @ joined, base))
    return balanced(draw, Net(nn.Sequential(*layers), (inputs,), flat(last @ matrix, last @ constant + base)))


@family()
def copies(draw: Draw) -> Net:
    """Eight copies of one neuron with large weights that all but cancel."""
    weight = draw.weights(int(draw.turn(1, 4, 2, 21)), most=4)
    low, high = total_range(weight)
    knot = draw.kinks(low + 0.3 * (high - low), high - 0.3 * (high - low), 1)
    out = draw.weights(3, 8, most=64)
    out[:, 7] = draw.weights(3) - out[:, :7].sum(1)
    model, block = hinges(weight, knot.repeat(8), out, draw.biases(3) / 4)
    return balanced(draw, Net(model, (len(weight),), Closed([block])))


@family()
def identity_chain(draw: Draw) -> Net:
    """Layers that pass non-negative inputs on, whose neurons touch their kink at the border of the range."""
    inputs, depth = 3, int(draw.turn(3, 6, 9, 12))
    eye = torch.eye(inputs, dtype=torch.float64)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [dense(eye, torch.zeros(inputs)), nn.ReLU()]
    matrix, base = draw.weights(3, inputs), draw.biases(3) / 4
    return balanced(draw, Net(nn.Sequential(*layers, dense(matrix, base)), (inputs,), flat(matrix, base)))


@family()
def shifted_chain(draw: Draw) -> Net:
    """x -> relu(x + 2) - 2, again and again, on a range that is not clipped or goes below zero."""
    inputs, depth = 3, int(draw.turn(2, 4, 6, 8))
    eye, shift = torch.eye(inputs, dtype=torch.float64), torch.full((inputs,), 2.0)
    layers: list[nn.Module] = []
    for k in range(depth):
        layers += [dense(eye, shift if k == 0 else torch.zeros(inputs)), nn.ReLU()]
    matrix, base = draw.weights(3, inputs), draw.biases(3) / 4
    layers.append(dense(matrix, base - matrix @ shift.double()))
    low, high = ((-1.0, 1.0), (None, None))[draw.number % 2]
    return Net(nn.Sequential(*layers), (inputs,), flat(matrix, base), low=low, high=high)


@family(networks=2)
def dead(draw: Draw) -> Net:
    """No hidden neuron ever opens."""
    into = draw.weights(6, 4)
    bias = -torch.stack([torch.tensor(total_range(row)[1]) for row in into]) - 0.25
    base = draw.kinks(-1.0, 1.0, 4)
    model = nn.Sequential(dense(into, bias), nn.ReLU(), dense(draw.weights(4, 6, most=64), base))
    return Net(model, (4,), flat(torch.zeros(4, 4, dtype=torch.float64), base))


@family(networks=2)
def constant(draw: Draw) -> Net:
    """Lively hidden layers that the outputs do not read."""
    base = draw.kinks(-1.0, 1.0, 5)
    layers = [
        dense(draw.weights(6, 4), draw.biases(6)),
        nn.ReLU(),
        dense(draw.weights(6, 6), draw.biases(6)),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, dense(torch.zeros(5, 6), base))
    return Net(model, (4,), flat(torch.zeros(5, 4, dtype=torch.float64), base))


@family()
def cancelled_residual(draw: Draw) -> Net:
    """The branch takes the input away again and leaves one kink of each input."""
    inputs = 3
    eye = torch.eye(inputs, dtype=torch.float64)
    knots, gains = draw.kinks(0.2, 0.8, inputs), draw.weights(inputs, most=16)
    into = dense(torch.cat([eye, eye]), torch.cat([torch.ones(inputs), -knots]))
    first = Residual(nn.Identity(), into, dense(torch.cat([-eye, gains.diag()], 1), torch.ones(inputs)))
    twice = draw.weights(4, inputs)
    same = dense(torch.cat([twice, twice]), draw.kinks(-0.5, 0.5, 4).repeat(2))
    give = draw.weights(inputs, 4, most=32)
    second = Residual(nn.Identity(), same, dense(torch.cat([give, -give], 1), torch.zeros(inputs)))
    matrix, base = draw.weights(3, inputs), draw.biases(3) / 8
    exact = curves(
        inputs, lambda i, t: (t - knots[i]).relu()[..., None] * gains[i] * matrix[:, i], knots[:, None], base
    )
    return balanced(draw, Net(nn.Sequential(first, second, dense(matrix, base)), (inputs,), exact))


# Functions with known extremes.


@family()
def absolute(draw: Draw) -> Net:
    """Sums of |x - c|, of either sign: least inside the box, not at a corner."""
    inputs = int(draw.turn(2, 4, 6, 3))
    centres, matrix, base = draw.kinks(0.2, 0.8, inputs), draw.weights(3, inputs), draw.biases(3) / 4
    eye = torch.eye(inputs, dtype=torch.float64)
    into = dense(torch.cat([eye, -eye]), torch.cat([-centres, centres]))
    model = nn.Sequential(into, nn.ReLU(), dense(torch.cat([matrix, matrix], 1), base))
    exact = curves(inputs, lambda i, t: (t - centres[i]).abs()[..., None] * matrix[:, i], centres[:, None], base)
    return balanced(draw, Net(model, (inputs,), exact))


@family(networks=6)
def leaky(draw: Draw) -> Net:
    """Leaky ReLUs, V-shaped ones with a negative slope and straight ones among them."""
    inputs, slope = 4, draw.turn(-1.0, -0.5, 0.25, -0.125, 1.0, 0.5)
    centres, matrix, base = draw.kinks(0.2, 0.8, inputs), draw.weights(3, inputs), draw.biases(3) / 4
    eye = torch.eye(inputs, dtype=torch.float64)
    model = nn.Sequential(dense(eye, -centres), nn.LeakyReLU(slope), dense(matrix, base))

    def curve(i: int, t: Tensor) -> Tensor:
        z = t - centres[i]
        return torch.where(z > 0, z, slope * z)[..., None] * matrix[:, i]

    return balanced(draw, Net(model, (inputs,), curves(inputs, curve, centres[:, None], base)))


@family()
def ladder(draw: Draw) -> Net:
    """Ten classes, each the winner on a part of the range: every label is asked for."""
    weight = draw.weights(int(draw.turn(1, 2, 3, 24)), most=2)
    low, high = total_range(weight)
    slopes = 4 * (torch.arange(10, dtype=torch.float64) - 4.5)
    meet = low + (high - low) * torch.arange(1, 10, dtype=torch.float64) / 10  # where neighbouring lines cross
    base = torch.cat([vector(0.0), -4 * (torch.floor(meet * GRID) / GRID + 1 / (2 * GRID)).cumsum(0)])
    order = torch.tensor(draw.rng.permutation(10))
    slopes, base = slopes[order], base[order]
    [knot] = draw.kinks(low, high, 1).tolist()
    sides = vector(1.0, -1.0)
    out = torch.stack([slopes, -slopes], 1)
    model, block = hinges(weight, vector(knot, knot), out, base + slopes * knot, sides)
    return Net(model, (len(weight),), Closed([block]))


@family(networks=3)
def duplicated(draw: Draw) -> Net:
    """Classes 1 to 3 are one and the same; a robust answer for class 0 has a threefold runner-up."""
    weight = draw.weights(3, most=4)
    low, high = total_range(weight)
    knots = torch.sort(draw.kinks(low, high, 4)).values
    one, other = draw.weights(4, most=16), draw.weights(4, most=16)
    out = torch.stack([one, other, other, other, one])
    out[4] = one - 1  # behind class 0 wherever a hinge is open
    model, block = hinges(weight, knots, out, vector(1.0, 0.0, 0.0, 0.0, 0.5))
    return Net(model, (3,), Closed([block]))


def exchange(inputs: int, comparisons: Sequence[tuple[int, int]]) -> Residual:
    """Compare and exchange pairs of numbers: the smaller goes to the first place, by one ReLU each."""
    difference = torch.zeros(len(comparisons), inputs)
    move = torch.zeros(inputs, len(comparisons))
    for k, (i, j) in enumerate(comparisons):
        difference[k, i], difference[k, j] = 1.0, -1.0
        move[i, k], move[j, k] = -1.0, 1.0
    return Residual(nn.Identity(), dense(difference), dense(move))


def ridge(inner: Callable[[Tensor], Tensor], inputs: int, slopes: Tensor, base: Tensor, knot: float) -> Closed:
    """base + slopes relu(inner - knot), of a rising function whose gradient is a unit vector everywhere."""
    block = Block(
        inner,
        torch.ones(inputs),
        lambda lower, upper: lower.new_ones(len(lower)),
        lambda t: base + (t - knot).relu()[..., None] * slopes,
        vector(knot),
    )
    return Closed([block])


SORT = {2: [[(0, 1)]], 4: [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(1, 2)]]}


@family()
def sorting(draw: Draw) -> Net:
    """A sorting network of ReLUs; the outputs read one order statistic: the largest, the least or one between."""
    inputs, rank = int(draw.turn(4, 4, 2, 4)), int(draw.turn(3, 1, 1, 0))
    [knot] = draw.kinks(0.3, 0.7, 1).tolist()
    slopes, base = draw.weights(3, most=16), draw.biases(3) / 4
    pick = torch.eye(inputs)[rank : rank + 1]
    model = nn.Sequential(
        *(exchange(inputs, layer) for layer in SORT[inputs]),
        dense(pick, vector(-knot)),
        nn.ReLU(),
        dense(slopes[:, None], base),
    )
    return balanced(draw, Net(model, (inputs,), ridge(lambda x: x.sort(1).values[:, rank], inputs, slopes, base, knot)))


@family()
def lattice(draw: Draw) -> Net:
    """min(max(a, b), max(c, d)) or max(min(a, b), min(c, d))."""
    inner_max = draw.number % 2 == 0
    [knot] = draw.kinks(0.2, 0.6, 1).tolist()
    slopes, base = draw.weights(4, most=16), draw.biases(4) / 4
    first, second = (1, 3) if inner_max else (0, 2)
    pick = torch.eye(4)[[first if inner_max else second]]
    model = nn.Sequential(
        exchange(4, [(0, 1), (2, 3)]), exchange(4, [(first, second)]), dense(pick, vector(-knot)), nn.ReLU(),
        dense(slopes[:, None], base),
    )  # fmt: skip

    def inner(x: Tensor) -> Tensor:
        halves = x.reshape(-1, 2, 2)
        return halves.amax(2).amin(1) if inner_max else halves.amin(2).amax(1)

    return balanced(draw, Net(model, (4,), ridge(inner, 4, slopes, base, knot)))


# Grafted networks.


@family(networks=6)
def all_grafted(draw: Draw) -> Net:
    """Every neuron is a line, falling ones and steep ones among them, whatever the activation was: affine."""
    base = (nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.25), nn.ReLU(), nn.LeakyReLU(-0.5))[draw.number]
    matrix, constant = torch.eye(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    layers: list[nn.Module] = []
    for _ in range(2):
        weight, bias = draw.weights(5, len(matrix), most=4), draw.biases(5)
        slope, intercept = draw.weights(5, most=16), draw.biases(5)
        act = GraftedActivation(base, torch.ones(5, dtype=torch.bool), slope.float(), intercept.float())
        layers += [dense(weight, bias), act]
        matrix, constant = slope[:, None] * (weight @ matrix), slope * (weight @ constant + bias) + intercept
    last, shift = draw.weights(3, 5), draw.biases(3)
    exact = flat(last @ matrix, last @ constant + shift)
    return balanced(draw, Net(nn.Sequential(*layers, dense(last, shift)), (4,), exact))


@family(networks=6)
def half_grafted(draw: Draw) -> Net:
    """Two neurons of each input, one a line and the other a kink, which the line may cancel on one side."""
    inputs, slope = 4, draw.turn(0.0, 0.0, 0.25, -0.5)
    centres, out, base = draw.kinks(0.2, 0.8, inputs), draw.weights(3, inputs), draw.biases(3) / 4
    lines, heights = draw.weights(inputs, most=16), draw.biases(inputs)
    if draw.number % 2:
        lines = -torch.ones(inputs, dtype=torch.float64)  # the line takes back what the kink adds
    eye = torch.eye(inputs, dtype=torch.float64)
    mask = torch.arange(2 * inputs) < inputs
    act = GraftedActivation(nn.LeakyReLU(slope), mask, lines.repeat(2).float(), heights.repeat(2).float())
    model = nn.Sequential(dense(torch.cat([eye, eye]), -centres.repeat(2)), act, dense(torch.cat([out, out], 1), base))

    def curve(i: int, t: Tensor) -> Tensor:
        z = t - centres[i]
        value = lines[i] * z + heights[i] + torch.where(z > 0, z, slope * z)
        return value[..., None] * out[:, i]

    return balanced(draw, Net(model, (inputs,), curves(inputs, curve, centres[:, None], base)))


# Smooth activations: not complete, but nothing said may be wrong.


@family()
def smooth(draw: Draw) -> Net:
    """A sum of sigmoids or of tanhs, each of its own input, in front of affine outputs."""
    inputs, act = 4, (nn.Sigmoid(), nn.Tanh())[draw.number % 2]
    into, shift, out = draw.weights(inputs, most=64), draw.biases(inputs) * 4, draw.weights(inputs)
    slopes, base = draw.weights(3, most=16), draw.biases(3)
    model = nn.Sequential(dense(into.diag(), shift), act, dense(torch.outer(slopes, out), base))

    def steepness(lower: Tensor, upper: Tensor) -> Tensor:
        ends = torch.stack([into * lower + shift, into * upper + shift])
        least, most = ends.amin(0), ends.amax(0)
        centre = torch.zeros_like(least).clamp(least, most)  # where the derivative is largest
        value = act(centre)
        slope = value * (1 - value) if isinstance(act, nn.Sigmoid) else 1 - value.square()
        return (slope * (into * out).abs()).sum(1)

    block = Block(
        lambda x: act(into * x + shift) @ out,
        (into * out).sign(),
        steepness,
        lambda t: base + t[..., None] * slopes,
        torch.zeros(0, dtype=torch.float64),
    )
    return balanced(draw, Net(model, (inputs,), Closed([block]), complete=False))


# Other layers that are known dense ones.


@family()
def pooled(draw: Draw) -> Net:
    """Convolution and average pooling, padded or not, that end in one number of the image."""
    kernel, shift = draw.weights(2, 2), float(draw.biases(1))
    conv = nn.Conv2d(1, 1, 2, stride=2)
    with torch.no_grad():
        conv.weight.copy_(kernel[None, None])
        conv.bias.fill_(shift)
    pool = (nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1))[draw.number % 2]
    weight = (kernel / 4).repeat(2, 2).flatten()
    low, high = total_range(weight)
    knots = torch.sort(draw.kinks(low, high, 4)).values
    out, base, sides = draw.weights(3, 4, most=16), draw.biases(3) / 4, vector(1.0, -1.0, 1.0, -1.0)
    into = dense(sides[:, None], -sides * (knots + shift))
    model = nn.Sequential(conv, pool, nn.Flatten(), into, nn.ReLU(), dense(out, base))
    block = linear(weight, lambda t: base + (sides * (t[..., None] - knots)).relu() @ out.T, knots.tolist())
    return balanced(draw, Net(model, (1, 4, 4), Closed([block])))


@family()
def patches(draw: Draw) -> Net:
    """A convolution over patches that do not overlap, with a second channel that is blind or the first's negative."""
    kernel, shift, share = draw.weights(2, 2, most=4), draw.kinks(-0.5, 0.5, 2), vector(1.0, draw.turn(0.0, -1.0))
    conv = nn.Conv2d(1, 2, 2, stride=2)
    with torch.no_grad():
        conv.weight.copy_(share[:, None, None, None] * kernel)
        conv.bias.copy_(shift)
    layers: list[nn.Module] = [conv]
    if draw.number > 1:
        norm = normalisation(draw, nn.BatchNorm2d(2))
        layers.append(norm)
        scale, offset = folded(norm)
        share, shift = scale * share, scale * shift + offset
    out, base = draw.weights(3, 8), draw.biases(3) / 4
    blocks = []
    for k in range(4):
        weight = torch.zeros(4, 4, dtype=torch.float64)
        weight[2 * (k // 2) :, 2 * (k % 2) :][:2, :2] = kernel

        def curve(t: Tensor, rows: Tensor = out[:, [k, k + 4]]) -> Tensor:
            return (share * t[..., None] + shift).relu() @ rows.T

        kinks = [float(-b / a) for a, b in zip(share, shift, strict=True) if a != 0]
        blocks.append(linear(weight.flatten(), curve, kinks))
    blocks.append(always(base, 16))
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), dense(out, base))
    return balanced(draw, Net(model, (1, 4, 4), Closed(blocks)))


@family()
def normalised(draw: Draw) -> Net:
    """BatchNorm between a diagonal layer and its ReLUs."""
    inputs = 4
    diagonal, shift = draw.weights(inputs), draw.biases(inputs)
    norm = normalisation(draw, nn.BatchNorm1d(inputs))
    scale, offset = folded(norm)
    out, base = draw.weights(3, inputs), draw.biases(3) / 4
    model = nn.Sequential(dense(diagonal.diag(), shift), norm, nn.ReLU(), dense(out, base))
    slope, offset = scale * diagonal, scale * shift + offset
    exact = curves(
        inputs, lambda i, t: (slope[i] * t + offset[i]).relu()[..., None] * out[:, i], (-offset / slope)[:, None], base
    )
    return balanced(draw, Net(model, (inputs,), exact))


@family()
def rescaled(draw: Draw) -> Net:
    """One function, with hidden numbers that are 64 times as large or as small."""
    weight, factor = draw.weights(3, most=4), draw.turn(64.0, 1 / 64, 16.0, 1 / 16)
    low, high = total_range(weight)
    knots = torch.sort(draw.kinks(low, high, 5)).values
    out, base = draw.weights(3, 5, most=24), draw.biases(3) / 4
    model, block = hinges(weight, knots, out, base)
    with torch.no_grad():
        for p in model[0].parameters():
            p.mul_(factor)
        model[2].weight.div_(factor)
    return balanced(draw, Net(model, (3,), Closed([block])))


# Random networks without a closed form.


def _random(draw: Draw, make: Callable[[int], nn.Module]) -> Net:
    weights = [draw.weights(5, 3, most=12), draw.weights(4, 5, most=6), draw.weights(3, 4)]
    first, second, last = (dense(w, draw.kinks(-0.5, 0.5, len(w))) for w in weights)
    model = nn.Sequential(first, make(5), second, make(4), last)
    return balanced(draw, Net(model, (3,), Programmed(double(model, (3,)))))


@family(networks=3, images=16, closed=False)
def random_relu(draw: Draw) -> Net:
    return _random(draw, lambda width: nn.ReLU())


@family(networks=3, images=16, closed=False)
def random_leaky(draw: Draw) -> Net:
    slope = draw.turn(-0.5, 0.25, -0.125)
    return _random(draw, lambda width: nn.LeakyReLU(slope))


@family(networks=3, images=16, closed=False)
def random_grafted(draw: Draw) -> Net:
    def act(width: int) -> nn.Module:
        mask = torch.tensor(draw.rng.random(width) < 0.4)
        return GraftedActivation(nn.ReLU(), mask, draw.weights(width, most=16).float(), draw.biases(width).float())

    return _random(draw, act)


@family(networks=3, images=16, closed=False)
def random_residual(draw: Draw) -> Net:
    width = 5
    first = Residual(
        dense(draw.weights(width, 3)), dense(draw.weights(4, 3), draw.biases(4)), dense(draw.weights(width, 4, most=4))
    )
    second = Residual(
        nn.Identity(), dense(draw.weights(4, width, most=4), draw.biases(4)), dense(draw.weights(width, 4, most=4))
    )
    model = nn.Sequential(first, nn.ReLU(), second, dense(draw.weights(3, width), draw.biases(3)))
    return balanced(draw, Net(model, (3,), Programmed(double(model, (3,)))))
