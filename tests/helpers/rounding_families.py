"""Networks on which arithmetic that rounds and hopes gives false proofs, with exact answers.

Each network is asked two questions about one image: a box in which the class never changes, and a slightly larger one
in which it does. What lies between them is smaller than what float32, and in some families float64, can see. Answers
are fractions; floating point has no part in them. To add a family, write a function under `@rounding_family`: every
test of `test_adversarial_rounding.py` then asks it.

Run as a program, it prints how often each arithmetic is fooled.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from exact_fractions import Array, fractions, outputs_along, outputs_at
from families import Draw, Residual, dense, vector
from lipgraft.grafting import GraftedActivation
from lipgraft.models.layers import Normalise
from lipgraft.verification import Verdict, VerifySettings, verify

UNIT = 2.0**-24  # the relative error of one float32 operation
Arithmetic = Literal["sound", "fast"]
Subject = Literal["real", "float32"]


def settings(arithmetic: Arithmetic, speaks_of: Subject = "real", *, attack: bool = False) -> VerifySettings:
    """Without an attack, proofs have to be right by themselves; little is optimised, because networks are many."""
    return VerifySettings().changed(
        limits={"timeout": 60.0, "max_subproblems": 32},
        attack={"restarts": 1 if attack else 0, "steps": 10, "search_every": 8 if attack else 0},
        optimise={"refine_iterations": 2, "iterations": 2},
        branch={"leaf_iterations": 5},
        arithmetic=arithmetic,
        speaks_of=speaks_of,
    )


def with_planes() -> VerifySettings:
    """Planes above neurons, and splits for hidden ones, from the first subproblem on."""
    eager = {"neuron_after": 0, "neuron_splits": 2, "plane_steps": 12}
    return settings("sound").changed(optimise={"refine": "none", "iterations": 0}, branch=eager)


# Questions and their answers.


@dataclass(frozen=True, eq=False)
class Question:
    """Is every input within a radius of x (*shape), inside [0, 1], of class y? One question for each radius.

    group, sign: (d,). The margin is a sum over groups of inputs, each a function of one number that rises (1) or falls
    (-1) with the inputs of its group: so its least value lies on the way between two corners, group by group.
    """

    model: nn.Module
    x: Tensor
    y: int
    radii: tuple[float, float]
    group: Sequence[int]
    sign: Sequence[int]

    def box(self, radius: float) -> tuple[Array, Array]:
        """The two ends (d,), exactly: the pixels and the radius are the numbers that they are."""
        x, r = fractions(self.x.flatten()), Fraction(radius)
        return np.maximum(x - r, Fraction(0)), np.minimum(x + r, Fraction(1))

    def margin_at(self, point: Array) -> Fraction:
        """The true class's output minus the strongest other one at a point (d,)."""
        return min(self._margins(outputs_at(self.model, point.reshape(self.x.shape))))

    def least(self, radius: float) -> tuple[Fraction, Array]:
        """The least margin over a box, and a point (d,) that has it."""
        lower, upper = self.box(radius)
        sign, group = np.array(self.sign), np.array(self.group)
        low, high = np.where(sign > 0, lower, upper), np.where(sign > 0, upper, lower)
        base = np.array(self._margins(outputs_at(self.model, low.reshape(self.x.shape))), dtype=object)
        points = [low.copy() for _ in base]
        total = base.copy()
        for g in sorted(set(self.group)):
            end = np.where(group == g, high, low)
            path = outputs_along(self.model, low.reshape(self.x.shape), end.reshape(self.x.shape))
            margins = [self._margins(row) for row in path.values]
            for k in range(len(base)):
                place = min(range(len(path.t)), key=lambda p: margins[p][k])
                total[k] += margins[place][k] - base[k]
                points[k] = np.where(group == g, low + path.t[place] * (high - low), points[k])
        worst = min(range(len(base)), key=lambda k: total[k])
        return total[worst], points[worst]

    def _margins(self, outputs: Array) -> list[Fraction]:
        return [outputs[self.y] - other for k, other in enumerate(outputs) if k != self.y]


@dataclass(frozen=True, eq=False)
class RoundingCase:
    """A network and its questions. x: (2, *shape), y: (2,), eps: (2,) float64, margin: the exact least ones.

    some_order_fails: whether float32, in some order of summation, does not give the image its class: by enumeration of
    the orders. every_order_right: whether all orders do at all points of the smaller box: by a bound on their errors.
    None: not asked.
    """

    question: Question
    x: Tensor
    y: Tensor
    eps: Tensor
    margin: tuple[Fraction, Fraction]
    some_order_fails: bool | None = None
    every_order_right: bool | None = None

    @property
    def robust(self) -> list[bool]:
        return [margin > 0 for margin in self.margin]

    @property
    def model(self) -> nn.Module:
        return self.question.model


@dataclass(frozen=True)
class RoundingFamily:
    name: str
    make: Callable[[Draw], RoundingCase]
    networks: int


ROUNDING: dict[str, RoundingFamily] = {}


def rounding_family(
    networks: int,
) -> Callable[[Callable[[Draw], RoundingCase]], Callable[[Draw], RoundingCase]]:
    def register(make: Callable[[Draw], RoundingCase]) -> Callable[[Draw], RoundingCase]:
        ROUNDING[make.__name__] = RoundingFamily(make.__name__, make, networks)
        return make

    return register


@cache
def rounding_case(name: str, number: int) -> RoundingCase:
    return ROUNDING[name].make(Draw(zlib.crc32(name.encode()) + number, number))


def verdicts(one: RoundingCase, chosen: VerifySettings) -> list[Verdict]:
    return verify(one.model, one.x, one.y, one.eps, settings=chosen)


def false_proofs(one: RoundingCase, found: Sequence[Verdict]) -> list[int]:
    """The questions that were called verified though the real network changes its class, or ties, in the box."""
    return [k for k, verdict in enumerate(found) if verdict.status == "verified" and not one.robust[k]]


# Building them.


def cased(question: Question, margin: tuple[Fraction, Fraction]) -> RoundingCase:
    question.model.eval()
    x = question.x[None].repeat(2, *[1] * question.x.ndim)
    eps = torch.tensor(question.radii, dtype=torch.float64)
    return RoundingCase(question, x, torch.full((2,), question.y), eps, margin)


def edged(question: Question, share: float = 0.5, *, tie: bool = False) -> RoundingCase:
    """The network with the other class's last bias set so that it wins in the larger box and not in the smaller one.

    share: where between the two least margins the edge lies, 0 at the larger box's. tie: at the larger box's, if
    float32 holds that number: there the two classes are equal, and the true one is not strictly the largest.
    """
    robust, other = (question.least(radius)[0] for radius in question.radii)
    assert robust > other, (float(robust), float(other))
    edge = other + Fraction(share) * (robust - other)
    if tie and Fraction(float(np.float32(float(other)))) == other:
        edge = other
    last = readout_of(question.model)
    with torch.no_grad():
        assert last.bias[1 - question.y].item() == 0.0
        last.bias[1 - question.y] = float(edge)
    edge = Fraction(last.bias[1 - question.y].item())
    assert robust > edge >= other, (float(robust), float(edge), float(other))
    return cased(question, (robust - edge, other - edge))


def singles(values: np.ndarray) -> Tensor:
    """Rounded to float32, as the network stores them."""
    return torch.tensor(np.asarray(values, dtype=np.float32)).double()


def one_ray(weight: Tensor) -> tuple[list[int], list[int]]:
    """All inputs enter through weight . x alone."""
    return [0] * len(weight), [1 if w >= 0 else -1 for w in weight.tolist()]


def apart(inputs: int) -> tuple[list[int], list[int]]:
    """Every input for itself."""
    return list(range(inputs)), [1] * inputs


def readout(y: int, row: Tensor) -> nn.Linear:
    """Two classes: row . h for y, and a bias, which `edged` sets, for the other."""
    weight = torch.zeros(2, len(row), dtype=torch.float64)
    weight[y] = row
    return dense(weight, torch.zeros(2))


def powers(draw: Draw, inputs: int) -> Tensor:
    """Powers of two: a float32 number times one of them is exact."""
    return torch.tensor(2.0 ** -draw.rng.integers(0, 4, inputs))


def readout_of(model: nn.Module) -> nn.Linear:
    return [module for module in model.modules() if isinstance(module, nn.Linear)][-1]


def beaten_at_the_image(one: RoundingCase) -> RoundingCase:
    """The network with the other class's bias raised until it wins, or ties, at the image; both radii are 0."""
    question = replace(one.question, model=deepcopy(one.model), radii=(0.0, 0.0))
    bias, place = readout_of(question.model).bias, 1 - question.y
    image = fractions(question.x.flatten())
    wanted = Fraction(bias[place].item()) + question.margin_at(image)
    raised = np.float32(float(wanted))
    if Fraction(float(raised)) < wanted:
        raised = np.nextafter(raised, np.float32(np.inf))
    with torch.no_grad():
        bias[place] = float(raised)
    margin = question.margin_at(image)
    assert margin <= 0
    return cased(question, (margin, margin))


def pixels_of(draw: Draw, inputs: int, low: float = 0.25, high: float = 0.75) -> Tensor:
    return singles(draw.rng.uniform(low, high, inputs)).float()


# Underflow.

CHAINS = (
    (-23, -23, 37, 9),  # forward, the second layer is zero in float32
    (37, -23, -23, 0),  # the third layer's rows are zero on their way back
    (0, 37, -23, -23),  # the outputs' rows are
    (-23, -23, 37, 37, -23, -23),  # both
    (-20, -22, 37, 5),  # not zero, but with few digits left
    (36, -21, -22, 0),
)


def _chain(draw: Draw, exponents: Sequence[int]) -> RoundingCase:
    """Two paths of ReLUs, side by side, through weights of these sizes."""
    y, weight = draw.number % 2, powers(draw, 3)
    factors = [singles(draw.rng.uniform(1, 2, 2) * 10.0**k) for k in exponents]
    layers: list[nn.Module] = [dense(torch.outer(factors[0], weight)), nn.ReLU()]
    for factor in factors[1:-1]:
        layers += [dense(factor.diag()), nn.ReLU()]
    model = nn.Sequential(*layers, readout(y, -factors[-1]))
    x = torch.tensor(draw.grid(0.375, 0.625, 3)).float()
    question = Question(model, x, y, (2.0**-6, 2.0 ** -draw.turn(3, 4, 5)), *one_ray(weight))
    return edged(question, draw.rng.uniform(0.1, 0.9))


@rounding_family(78)
def underflow(draw: Draw) -> RoundingCase:
    """Weights of 1e37 and 1e-23 whose product is an ordinary number, and nothing on the way to it."""
    return _chain(draw, CHAINS[draw.number % len(CHAINS)])


@rounding_family(12)
def underflow_of_doubles(draw: Draw) -> RoundingCase:
    """The same, too small for float64 as well: a proof repeated in float64 is fooled like one in float32."""
    return _chain(draw, [-44] * 8 + [37] * 9)


@rounding_family(60)
def denormal(draw: Draw) -> RoundingCase:
    """Denormal weights, or, three times in four, denormal products of weights, with a digit or two."""
    y, inputs = draw.number % 2, 3
    digits = draw.rng.uniform(1, 12, inputs)
    large = singles(draw.rng.uniform(1, 2, inputs) * 2.0**115)
    if draw.number % 4 == 0:
        factors = [singles(digits * 2.0**-149), large]
    else:  # the rows lose their digits on the way back, the values keep them on the way there
        factors = [large, singles(digits * 2.0**-89), singles(draw.rng.uniform(1, 2, inputs) * 2.0**-60)]
    layers: list[nn.Module] = []
    for factor in factors[:-1]:
        layers += [dense(factor.diag()), nn.ReLU()]
    x = torch.tensor(draw.grid(0.25, 0.75, inputs)).float()
    model = nn.Sequential(*layers, readout(y, -factors[-1]))
    return edged(Question(model, x, y, (1 / 64, 1 / 64 + draw.turn(1 / 1024, 1 / 256, 1 / 128)), *apart(inputs)))


@rounding_family(48)
def flushed(draw: Draw) -> RoundingCase:
    """A weight times the radius is less than half the smallest number, and zero; several of them are not."""
    y, inputs = draw.number % 2, 6
    whole = draw.rng.integers(12, 16, inputs)
    x = torch.full((inputs,), 0.5)
    copies = [dense(torch.eye(inputs)), nn.ReLU()] if draw.number % 4 < 2 else []
    last = readout(y, -singles(whole * 2.0**-134))
    question = Question(nn.Sequential(*copies, last), x, y, (2.0**-23, 2.0**-20), *apart(inputs))
    # At the image the margin is the smallest number there is: all others are multiples of it, but for the radius.
    with torch.no_grad():
        last.bias[1 - y] = float(question.margin_at(fractions(x)) - Fraction(2) ** -149)
    robust, other = (question.least(radius)[0] for radius in question.radii)
    return cased(question, (robust, other))


# Cancellation.


def _balanced_layer(draw: Draw, inputs: int, largest: float, neurons: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, biases from 1 to the largest and a readout, in which the biases cancel pair by pair, in mixed order."""
    half = neurons // 2
    biases = singles(np.exp(draw.rng.uniform(0, np.log(largest), half)) + 4)
    biases[0] = float(np.float32(largest * draw.rng.uniform(0.5, 1)))
    out = singles(draw.rng.uniform(0.5, 1, half) * draw.rng.choice([-1, 1], half))
    order = draw.rng.permutation(neurons)
    weight = singles(draw.rng.uniform(-1, 1, (neurons, inputs)))
    return weight, torch.cat([biases, biases])[order], torch.cat([out, -out])[order]


def _step(largest: float, slopes: Tensor, share: float) -> float:
    """The growth of the radius that moves the margin by a share of what float32 loses at numbers of this size."""
    return min(0.2, share * largest * UNIT / float(slopes.abs().sum()))


@rounding_family(120)
def cancellation(draw: Draw) -> RoundingCase:
    """64 neurons with biases from 1 up to 1e8, which cancel at the output."""
    y, inputs, largest = draw.number % 2, int(draw.turn(2, 3)), 10.0 ** draw.turn(4, 5, 6, 7, 8)
    weight, bias, out = _balanced_layer(draw, inputs, largest)
    model = nn.Sequential(dense(weight, bias), nn.ReLU(), readout(y, out))
    radius = 1 / 64
    wider = radius + _step(largest, out @ weight, draw.turn(0.25, 1.0))
    return edged(Question(model, pixels_of(draw, inputs), y, (radius, wider), *apart(inputs)), tie=draw.number % 5 == 0)


@rounding_family(60)
def cancellation_over_layers(draw: Draw) -> RoundingCase:
    """A layer adds large numbers, and the next ones take them away again."""
    y, inputs, largest = draw.number % 2, 3, 10.0 ** draw.turn(4, 6, 8)
    shift = singles(draw.rng.uniform(0.25, 1, 6) * largest)
    first = singles(draw.rng.uniform(-1, 1, (6, inputs)))
    back = torch.eye(6, dtype=torch.float64)
    lift = torch.full((6,), 8.0, dtype=torch.float64)  # keeps the last neurons open
    layers: list[nn.Module] = [dense(first, shift), nn.ReLU()]
    if draw.number % 2:  # another detour between
        layers += [dense(2 * back, -shift), nn.ReLU()]
        # 2 (z + shift) - shift = 2 z + shift
    layers += [dense(back, lift - shift), nn.ReLU()]
    out = draw.weights(6)
    model = nn.Sequential(*layers, readout(y, out))
    slopes = (out @ first) * (2 if draw.number % 2 else 1)
    wider = 1 / 64 + _step(largest, slopes, 0.25)
    return edged(Question(model, pixels_of(draw, inputs), y, (1 / 64, wider), *apart(inputs)))


@rounding_family(40)
def cancellation_of_doubles(draw: Draw) -> RoundingCase:
    """Biases up to 1e30, beyond float64: what is left of the sum is a guess in both precisions."""
    y, inputs, largest = draw.number % 2, 2, 10.0 ** draw.turn(18, 24, 30)
    weight, bias, out = _balanced_layer(draw, inputs, largest, neurons=16)
    model = nn.Sequential(dense(weight, bias), nn.ReLU(), readout(y, out))
    return edged(Question(model, pixels_of(draw, inputs), y, (1 / 64, 1 / 8), *apart(inputs)))


@rounding_family(60)
def convolution(draw: Draw) -> RoundingCase:
    """Channels of a convolution whose biases cancel."""
    y, channels, largest = draw.number % 2, 16, 10.0 ** draw.turn(5, 6, 7, 8)
    kernels, bias, out = _balanced_layer(draw, 2, largest, channels)
    conv = nn.Conv2d(1, channels, (1, 2))
    with torch.no_grad():
        conv.weight.copy_(kernels.reshape(channels, 1, 1, 2))
        conv.bias.copy_(bias)
    row = out[:, None].repeat(1, 2).flatten()  # both places of a channel alike
    model = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), readout(y, row))
    wider = 1 / 64 + _step(largest, 2 * (out @ kernels), 0.5)
    x = pixels_of(draw, 4).reshape(1, 2, 2)
    return edged(Question(model, x, y, (1 / 64, wider), *apart(4)))


@rounding_family(60)
def residual(draw: Draw) -> RoundingCase:
    """Each branch carries a large number, and their sum does not."""
    y, inputs, largest = draw.number % 2, 3, 10.0 ** draw.turn(5, 6, 7, 8)
    shift = singles(draw.rng.uniform(0.25, 1, inputs) * largest)
    keep, mix = (singles(draw.rng.uniform(-1, 1, (inputs, inputs))) for _ in range(2))
    eye = torch.eye(inputs, dtype=torch.float64)
    block = Residual(dense(keep, shift), dense(eye, torch.ones(inputs)), dense(mix, -shift))
    out = draw.weights(inputs)
    wider = 1 / 64 + _step(largest, out @ (keep + mix), 0.25)
    question = Question(
        nn.Sequential(block, readout(y, out)), pixels_of(draw, inputs), y, (1 / 64, wider), *apart(inputs)
    )
    return edged(question)


@rounding_family(60)
def steep_grafts(draw: Draw) -> RoundingCase:
    """Grafted neurons whose line has a huge slope and a huge intercept, which all but cancel inside the box."""
    y, inputs, steep, lift = draw.number % 2, 3, 10.0 ** draw.turn(4, 6, 8, 20), draw.turn(8.0, 64.0)
    x, into = pixels_of(draw, inputs), singles(draw.rng.uniform(0.5, 1, inputs))
    slope = singles(draw.rng.uniform(0.5, 1, inputs) * steep * draw.rng.choice([-1, 1], inputs))
    shift = singles(draw.rng.uniform(0.5, 1, inputs) * lift)
    intercept = singles((-slope * (into * x.double() + shift)).numpy())
    mask = torch.tensor([True, True, bool(draw.number % 2)])
    act = GraftedActivation(nn.ReLU(), mask, slope.float(), intercept.float())
    out = singles(draw.rng.uniform(0.5, 1, inputs))
    model = nn.Sequential(dense(into.diag(), shift), act, readout(y, out))
    wider = 2.0**-20 + _step(steep * lift, (slope * into * out)[mask], 0.25)
    return edged(Question(model, x, y, (2.0**-20, wider), *apart(inputs)))


# Needles.


def _veiled(draw: Draw, weight: Tensor, near: float, most: float = 256.0) -> tuple[list[nn.Module], float]:
    """relu(weight . x - near), computed beside large constants that cancel; and near, as it is stored.

    The constants' rounding is worth more than what a box's ends are rounded outward by.
    """
    large, up, half = most / draw.turn(16.0, 4.0, 1.0), 4.0, 6
    constants = singles(draw.rng.uniform(0.5, 1, half) * large)
    shares = singles(draw.rng.uniform(0.5, 1, half))
    place = draw.rng.permutation(2 * half + 1)
    rows = torch.cat([weight[None], torch.zeros(2 * half, len(weight), dtype=torch.float64)])
    biases, out = torch.cat([vector(up), constants, constants]), torch.cat([vector(1.0), shares, -shares])
    stored = singles(np.array([-up - near]))
    first, second = dense(rows[place], biases[place]), dense(out[place][None], stored)
    return [first, nn.ReLU(), second, nn.ReLU()], -up - float(stored)


@rounding_family(70)
def needle_at_the_border(draw: Draw) -> RoundingCase:
    """A neuron that opens in the last 1e-9 of the larger box, behind one whose rounding error is larger than that."""
    y, inputs, gain = draw.number % 2, int(draw.turn(2, 4)), 2.0**30
    weight = singles(draw.rng.uniform(0.25, 1, inputs) * draw.rng.choice([-1, 1], inputs))
    x, radius = pixels_of(draw, inputs), draw.turn(2.0**-12, 2.0**-9, 2.0**-7)
    reach = float(weight @ x.double()) + radius * float(weight.abs().sum())
    front, near = _veiled(draw, weight, reach - radius * draw.turn(0.25, 2.5))  # unstable in the box, or open all over
    tip = dense(vector(gain)[None], singles(np.array([8 - gain * (reach - near)])))
    wider = radius + draw.turn(1e-9, 4e-9, 1e-8)
    model = nn.Sequential(*front, tip, nn.ReLU(), readout(y, vector(-1.0)))
    return edged(Question(model, x, y, (radius, wider), *one_ray(weight)))


@rounding_family(40)
def needle_of_doubles(draw: Draw) -> RoundingCase:
    """A needle of width 1e-16, in a box that float32 holds exactly, beside constants that float64 cannot cancel."""
    y, inputs, gain, radius = draw.number % 2, int(draw.turn(2, 3)), 2.0**60, 2.0**-9
    weight = singles(draw.rng.uniform(0.25, 1, inputs) * draw.rng.choice([-1, 1], inputs))
    x = torch.tensor(draw.grid(0.25, 0.75, inputs)).float()
    reach = float(weight @ x.double()) + radius * float(weight.abs().sum())
    front, near = _veiled(draw, weight, reach - radius * draw.turn(0.25, 2.5), most=1e12)
    tip = dense(vector(gain)[None], singles(np.array([-gain * (reach - near) * (1 - 4 * UNIT)])))
    model = nn.Sequential(*front, tip, nn.ReLU(), readout(y, vector(-1.0)))
    return edged(Question(model, x, y, (radius - 2.0**-53, radius), *one_ray(weight)))


@rounding_family(60)
def needle_inside(draw: Draw) -> RoundingCase:
    """A tent of width 1e-9 that no float32 input meets: 3 x = b has no solution among them."""
    y, gain = draw.number % 2, 2.0 ** draw.turn(26, 28, 30)
    weight = vector(3.0, 1.5)[: 1 + draw.number % 2]
    x = torch.tensor(draw.grid(0.375, 0.625, len(weight))).float()
    beside = draw.turn(2.0**-3, 2.0**-6, 2.0**-10)  # how far the needle is from x, and the boxes' radii about
    middle = float(np.float32(float(weight @ x.double()) + beside * float(weight.sum()) * draw.rng.uniform(0.9, 1)))
    exact = Fraction(middle) - sum(Fraction(float(w)) * Fraction(float(v)) for w, v in zip(weight, x, strict=True))
    distance = float(exact / Fraction(float(weight.sum())))
    model = nn.Sequential(
        dense(torch.stack([weight, -weight]), vector(-middle, middle)), nn.ReLU(),
        dense(vector(-gain, -gain)[None], vector(1.0)), nn.ReLU(), readout(y, vector(-draw.turn(1.0, 0.125))),
    )  # fmt: skip
    more = draw.turn(1e-8, 2.0**-20, 2.0**-12)
    return edged(Question(model, x, y, (distance - more, distance + more), *one_ray(weight)))


# Small boxes.


def _steep_line(draw: Draw, x: Tensor, gain: float) -> tuple[nn.Sequential, Tensor]:
    """A neuron that is open near x, and hardly so, in front of a large weight."""
    weight = singles(draw.rng.uniform(0.25, 1, len(x)) * draw.rng.choice([-1, 1], len(x)))
    front, _ = _veiled(draw, weight, float(weight @ x.double()) - 2.0**-14)
    return nn.Sequential(*front, readout(draw.number % 2, vector(-gain))), weight


@rounding_family(50)
def tiny_radius(draw: Draw) -> RoundingCase:
    """A radius of 1e-8 around pixels that float32 cannot move by it."""
    x = pixels_of(draw, int(draw.turn(2, 4)), 0.5, 1.0)
    model, weight = _steep_line(draw, x, 2.0**24)
    return edged(Question(model, x, draw.number % 2, (draw.turn(5e-9, 9e-9), 1e-8), *one_ray(weight)))


@rounding_family(50)
def one_ulp(draw: Draw) -> RoundingCase:
    """Boxes that reach to the next number of float32, and hardly less far."""
    x = pixels_of(draw, int(draw.turn(2, 4)), 0.5, 1.0)
    model, weight = _steep_line(draw, x, 2.0**24)
    less = draw.turn(0.875, 0.96875)
    return edged(Question(model, x, draw.number % 2, (less * UNIT, UNIT), *one_ray(weight)))


# Layers that are folded.


@rounding_family(60)
def batch_norm(draw: Draw) -> RoundingCase:
    """Statistics with a large mean and a small variance: scale and shift lose the digits that matter.

    Half of them are folded into the layer before. With larger means there than here the graph would be refused, because
    it differs too much from the model.
    """
    folds = draw.number % 2 == 0
    y, inputs, largest = draw.number // 2 % 2, 3, draw.turn(16.0, 1e4, 32.0, 1e6)
    x = pixels_of(draw, inputs, 0.625, 0.75)
    into, shift = singles(draw.rng.uniform(0.5, 1, inputs)), singles(draw.rng.uniform(0.5, 1, inputs) * largest)
    norm = nn.BatchNorm1d(inputs, eps=2.0**-20)
    odd = 2.0 * draw.rng.integers(1, 20, inputs) + 1
    with torch.no_grad():
        norm.running_mean.copy_(shift + 0.5 * into)
        norm.running_var.copy_(torch.tensor((odd**2 - 1) * 2.0**-20))  # with eps, the square of odd / 1024
        norm.weight.copy_(singles(draw.rng.uniform(0.5, 1, inputs)))
        norm.bias.copy_(singles(draw.rng.uniform(0, 4, inputs)))
    out = draw.weights(inputs)
    between = nn.Identity() if folds else nn.ReLU()
    model = nn.Sequential(dense(into.diag(), shift), between, norm, nn.ReLU(), readout(y, out))
    wider = 1 / 64 + largest * UNIT * draw.turn(0.25, 0.25, 1.0)
    return edged(Question(model, x, y, (1 / 64, wider), *apart(inputs)))


@rounding_family(60)
def small_deviation(draw: Draw) -> RoundingCase:
    """Pixels are normalised by a mean close to them and a tiny standard deviation."""
    y, deviation = draw.number % 2, 10.0 ** -draw.turn(3, 5, 7)
    mean = singles(draw.rng.uniform(0.3, 0.45, 2))
    std = singles(draw.rng.uniform(0.5, 1, 2) * deviation)
    x = (mean[:, None] + torch.tensor(draw.rng.uniform(-1, 1, (2, 2)) * 2.0**-10)).float().reshape(2, 1, 2)
    x = (x * 2**20).round() / 2**20  # so that the ends of the boxes are numbers of float32, and not rounded outward
    sides = (x.double() - mean[:, None, None]).flatten().sign()  # so that neurons are open at the image
    into, out = sides * singles(draw.rng.uniform(0.5, 1, 4)), draw.weights(4)
    model = nn.Sequential(
        Normalise(mean.tolist(), std.tolist()), nn.Flatten(), dense(into.diag(), singles(draw.rng.uniform(0, 1, 4))),
        nn.ReLU(), readout(y, out),
    )  # fmt: skip
    return edged(Question(model, x, y, (2.0**-12, 2.0**-12 + 0.5 * UNIT), *apart(4)), share=0.1)


# The order of summation.


def sums(terms: Sequence[float]) -> Iterator[np.float32]:
    """The float32 sums of the terms, one after the other, in every order."""
    for order in permutations([np.float32(term) for term in terms]):
        total = np.float32(0)
        for term in order:
            total = total + term
        yield total


@rounding_family(60)
def order(draw: Draw) -> RoundingCase:
    """1e8 - 1e8 + 1: the logit is what is left, and float32 finds it in some orders of summation only."""
    y, large = draw.number % 2, float(draw.turn(2.0**25, 2.0**27, 1e8, 1e9))
    spacing = float(np.spacing(np.float32(large)))
    # Neurons that are constant, and one that follows the only input that matters; all weights of the sum are 1 or -1.
    small = singles(draw.rng.uniform(0.1, 0.9, 2) * spacing)
    constants = torch.cat([vector(large), small[:1], vector(large), small[1:]])
    signs, place = vector(1.0, 1.0, -1.0, -1.0 if draw.number % 3 else 1.0), draw.rng.permutation(5)
    weight = torch.zeros(5, 2, dtype=torch.float64)
    weight[4, 0] = 1.0
    bias, out = torch.cat([constants, vector(0.0)])[place], torch.cat([signs, vector(1.0)])[place]
    model = nn.Sequential(dense(weight[place], bias), nn.ReLU(), readout(y, out))
    x = torch.tensor(draw.grid(0.25, 0.75, 2)).float()
    one = edged(Question(model, x, y, (1 / 16, 1 / 4), *apart(2)))
    with torch.no_grad():
        terms = (out.float() * torch.relu(weight[place].float() @ x + bias.float())).tolist()
        other = np.float32(model[-1].bias[1 - y].item())
    fails = any(total <= other for total in sums(terms))
    return replace(one, some_order_fails=fails)


@rounding_family(32)
def any_order(draw: Draw) -> RoundingCase:
    """The same kind of sum with margins far above what any order of summation can lose."""
    y, inputs = draw.number % 2, 3
    weight, bias, out = _balanced_layer(draw, inputs, float(draw.turn(8, 16, 64)), neurons=8)
    model = nn.Sequential(dense(weight, bias), nn.ReLU(), readout(y, out))
    one = edged(Question(model, pixels_of(draw, inputs), y, (1 / 64, 1 / 4), *apart(inputs)))
    return replace(one, every_order_right=_safe(one, weight, bias, out))


def _safe(one: RoundingCase, weight: Tensor, bias: Tensor, out: Tensor) -> bool:
    """Whether the smaller box's margin is a hundred times what two layers can lose, in whatever order they add.

    The sum of all absolute values, times the number of operations on the longest way, times the relative error of one,
    bounds the loss (to first order; the rest is far below the factor of a hundred).
    """
    size = float((out.abs() @ (weight.abs().sum(1) + bias.abs())).sum())
    operations = weight.shape[1] + len(bias) + 4
    return one.margin[0] > Fraction(100 * 2 * operations * size * UNIT)


# Who is fooled how often.


@dataclass
class Score:
    """networks: how many; proved: of the robust questions; false: proofs of questions that are not."""

    networks: int = 0
    robust: int = 0
    proved: int = 0
    fragile: int = 0
    false: int = 0


def score(name: str, chosen: VerifySettings, every: int = 1) -> Score:
    out = Score()
    for number in range(0, ROUNDING[name].networks, every):
        one = rounding_case(name, number)
        found = verdicts(one, chosen)
        false = len(false_proofs(one, found))
        verified = sum(verdict.status == "verified" for verdict in found)
        out.networks += 1
        out.robust += sum(one.robust)
        out.fragile += len(found) - sum(one.robust)
        out.false += false
        out.proved += verified - false
    return out


def main(arithmetics: Sequence[Arithmetic] = ("fast", "sound")) -> None:
    """A table: for each family, true and false proofs by arithmetic."""
    heads = [f"{kind}: {what}" for kind in arithmetics for what in ('false "verified"', "robust ones proved")]
    print("| family | networks | " + " | ".join(heads) + " |")
    print("|---|---|" + "---|" * len(heads))
    sums_of = {kind: Score() for kind in arithmetics}
    for name, one in ROUNDING.items():
        cells = []
        for kind in arithmetics:
            found, total = score(name, settings(kind)), sums_of[kind]
            for field in vars(found):
                setattr(total, field, getattr(total, field) + getattr(found, field))
            cells += [f"{found.false} of {found.fragile}", f"{found.proved} of {found.robust}"]
        print(f"| {name.replace('_', ' ')} | {one.networks} | " + " | ".join(cells) + " |", flush=True)
    cells = []
    for total in sums_of.values():
        cells += [f"{total.false} of {total.fragile}", f"{total.proved} of {total.robust}"]
    print(f"| all | {next(iter(sums_of.values())).networks} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
