"""Planes above neurons, by what they read: true of every input, chords to begin with, better when they are fitted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from exact_fractions import fractions, outputs_at
from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.grouped import Grouped
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.memory import never
from lipgraft.bounds.planes import Choice, Reads
from lipgraft.box import Box
from lipgraft.network import Network, evaluate, trace
from lipgraft.verification.branch_and_bound import planes
from lipgraft.verification.branch_and_bound.planes import Group, Planes, UpperPlanes, fit
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from window_networks import boxes, network


class Sum(nn.Module):
    """Neurons that read two sources: activations behind an addition."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second, self.third = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 2, 2)
        self.last = nn.Linear(18, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        out: Tensor = self.last(self.third((self.second(y).relu() + y).relu()).relu().flatten(1))
        return out


def residual() -> Network:
    return trace(Sum().double(), (1, 6, 6)).to()


def sound_bounds(net: Network, box: Box, dtype: torch.dtype = torch.float32) -> NeuronBounds:
    prepared = prepare(net, box, sound_for=dtype)
    return NeuronBounds.of(Layout.of(net, net.output), prepared.intervals, prepared.rounding)


def all_reads(bounds: NeuronBounds, image: int) -> list[Reads]:
    out: list[Reads] = []
    for i, place in bounds.layout.places.items():
        open_ = bounds.open[image]
        column = open_[(open_ >= place.start) & (open_ < place.stop)] - place.start
        found = Reads.of(bounds.layout, i, image, column) if len(column) else None
        if found is not None:
            out.append(found)
    return out


def random_choice(read: Reads, seed: int) -> Choice:
    """Of numbers of single precision, as a search has them."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(read.weight.shape, generator=generator)
    low, high = (most * torch.rand(read.bias.shape, generator=generator) for most in (1, 2))
    return Choice(share.double(), low.double(), high.double())


def cases() -> list[tuple[Network, Box]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(2, 1, 6, 6, generator=generator, dtype=torch.float64)
    return [(network("relu"), boxes(2, 0.05)), (network("grafted"), boxes(2, 0.05)), (residual(), Box.linf(x, 0.2))]


@pytest.mark.parametrize("case", range(3), ids=["convolutions", "grafted", "residual"])
def test_every_plane_lies_above_its_neuron_at_every_sampled_point(case: int) -> None:
    net, box = cases()[case]
    bounds = sound_bounds(net, box)
    generator = torch.Generator().manual_seed(2)
    checked = 0
    for image in range(2):
        share = torch.rand(60, *box.lower.shape[1:], generator=generator, dtype=torch.float64)
        share[::2] = share[::2].round()  # corners
        values = evaluate(net, box.lower[image] + share * (box.upper - box.lower)[image])
        for read in all_reads(bounds, image):
            z = values[bounds.layout.activation(read.act).inputs[0]].flatten(1)[:, read.column[0]]
            for choice in (read.chord(bounds), random_choice(read, 3), random_choice(read, 4)):
                plane = read.plane(bounds, choice)
                above = plane.const[0] + sum(values[j].flatten(1) @ slope[0].T for j, slope in plane.slope.items())
                assert bool((z.relu() <= above).all())
                checked += z.shape[1]
    assert checked > 100


def test_the_first_choice_is_the_chord() -> None:
    net, box = cases()[0]
    bounds = sound_bounds(net, box)
    for read in all_reads(bounds, 0):
        place = bounds.layout.places[read.act]
        lower, upper = (end[0, place][read.column] for end in (bounds.lower, bounds.upper))
        slope = upper / (upper - lower)
        z = torch.linspace(-1, 1, slope.shape[1], dtype=torch.float64)
        plane = read.plane(bounds, read.chord(bounds))
        dense = torch.cat(list(plane.slope.values()), 2)
        torch.testing.assert_close(dense.gather(2, read.index), slope[..., None] * read.weight)
        torch.testing.assert_close(plane.const + slope * (z - read.bias), slope * (z - lower), rtol=0, atol=1e-6)


@pytest.mark.parametrize("ends", [(0.5, 1.0), (-1.0, -0.5), (0.0, 0.0)], ids=["active", "inactive", "zero"])
def test_neurons_whose_bounds_have_left_their_kink_get_true_planes_too(ends: tuple[float, float]) -> None:
    """Bounds are improved after neurons were listed as open; a multiplier below zero would make a plane false."""
    net, box = cases()[0]
    bounds = sound_bounds(net, box)
    for end, value in zip((bounds.lower, bounds.upper), ends, strict=True):
        end[0, :-1] = value
    for read in all_reads(bounds, 0):
        choice = read.chord(bounds)
        for part in (choice.share, choice.low, choice.high):
            assert bool(((part >= 0) & (part <= 1)).all())


def corner_problem() -> tuple[NeuronBounds, Subproblems]:
    """-relu(x1 + x2) - relu(x1 - x2) over [-1, 1]^2: its least value is -2, and chords say -3."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        model[2].weight.copy_(torch.tensor([[-1.0, -1.0], [0.0, 0.0]]))
        for layer in (model[0], model[2]):
            layer.bias.zero_()  # type: ignore[union-attr]
    net = trace(model, (2,)).to()
    bounds = sound_bounds(net, Box(-torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)))
    nothing = torch.zeros(1, 0, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.int64)
    alpha = torch.zeros(1, 2, dtype=torch.float64)
    none = torch.zeros(1, 0, dtype=torch.int64)
    return bounds, Subproblems(zero, zero + 1, alpha[:, 0], alpha, zero, none, nothing, nothing, nothing)


def test_fitted_planes_find_what_no_chord_can() -> None:
    bounds, sub = corner_problem()
    rows = torch.tensor([[[[1.0, -1.0]]]], dtype=torch.float64)
    group = Group.of(bounds, 0, 1, bounds.open[0], torch.float64)

    def function(sub: Subproblems, planes: Planes, grouped: Grouped) -> LowerBound:
        return LowerBound(bounds, sub.image, rows, planes=planes, grouped=grouped)

    def value(group: Group) -> float:
        planes = UpperPlanes.of([group], bounds, None, 2)
        grouped = planes.grouped(sub.image, sub.target)
        return float(function(sub, planes.search, grouped).sound_value(sub.alpha, sub.beta))

    chords = float(LowerBound(bounds, sub.image, rows).sound_value(sub.alpha, sub.beta))
    assert value(group) == pytest.approx(chords, abs=1e-9)
    fitted = value(fit([group], bounds, sub, function, 200, never)[0])
    assert chords < -2.9
    assert -2.1 < fitted <= -2.0
    assert all(value(kept) == value(group) for kept in fit([replace(group, rate=0.0)], bounds, sub, function, 9, never))


def test_planes_that_were_fitted_before_are_moved_by_shorter_steps() -> None:
    bounds, _ = corner_problem()
    first = Group.of(bounds, 0, 1, bounds.open[0], torch.float64)
    again = Group.of(bounds, 0, 1, bounds.open[0], torch.float64, first)
    assert 0 < again.rate < first.rate


@pytest.mark.parametrize("case", [0, 2], ids=["convolutions", "residual"])
def test_where_slopes_are_limited_cheap_layers_get_planes_first_and_wide_chords_of_the_others(
    case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, box = cases()[case]
    bounds = sound_bounds(net, box)
    whole = Group.of(bounds, 0, 1, bounds.open[0], torch.float64)
    cost = {i: read.slopes // read.column.shape[1] for i, read in whole.reads.items()}
    assert cost == {i: Reads.values(bounds.layout, i) for i in cost}
    dearest = max(whole.reads, key=lambda i: cost[i])
    limit = whole.slopes - cost[dearest]  # room for all planes but one
    monkeypatch.setattr(planes, "SLOPES", limit)
    limited = Group.of(bounds, 0, 1, bounds.open[0], torch.float64)
    assert list(limited.reads) == list(whole.reads)
    assert limited.slopes == limit
    (left_out,) = set(whole.reads[dearest].column[0].tolist()) - set(limited.reads[dearest].column[0].tolist())
    place = bounds.layout.places[dearest].start
    lower, upper = (end[0, whole.reads[dearest].column[0] + place] for end in (bounds.lower, bounds.upper))
    gap = -lower * upper / (upper - lower)
    assert left_out == int(whole.reads[dearest].column[0, gap.argmin()])
    monkeypatch.setattr(planes, "SLOPES", 0)
    assert Group.of(bounds, 0, 1, bounds.open[0], torch.float64).reads == {}


@pytest.mark.parametrize("case", [0, 2], ids=["convolutions", "residual"])
def test_a_group_begins_with_what_is_known_of_its_neurons_and_with_chords_elsewhere(case: int) -> None:
    net, box = cases()[case]
    bounds = sound_bounds(net, box)
    neurons = bounds.open[0][bounds.open[0] < bounds.layout.size]
    known = Group.of(bounds, 0, 1, neurons[::2], torch.float64)
    known = replace(known, choice={i: random_choice(read, i) for i, read in known.reads.items()})
    group = Group.of(bounds, 0, 1, neurons[len(neurons) // 4 :], torch.float64, known)
    counts = {"known": 0, "new": 0}
    for i, read in group.reads.items():
        begun, chord = (read.plane(bounds, choice) for choice in (group.choice[i], read.chord(bounds)))
        before = known.reads[i].plane(bounds, known.choice[i])
        for k, column in enumerate(read.column[0].tolist()):
            here = torch.nonzero(before.column[0] == column).flatten().tolist()
            counts["known" if here else "new"] += 1
            want, at = (before, here[0]) if here else (chord, k)
            torch.testing.assert_close(begun.const[0, k], want.const[0, at])
            for j, slope in begun.slope.items():
                torch.testing.assert_close(slope[0, k], want.slope[j][0, at])
    assert min(counts.values()) >= 5


def cancelling(seed: int) -> nn.Sequential:
    """Neurons in pairs that nearly cancel, with large weights behind them: what is left is mostly rounding."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for layer, size in ((model[0], 1.0), (model[2], 2.0**20), (model[4], 1.0)):
            layer.weight.copy_(size * torch.randn(layer.weight.shape, generator=generator))  # type: ignore[union-attr]
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator) / 4)  # type: ignore[union-attr]
        model[0].weight[1::2], model[0].bias[1::2] = model[0].weight[::2], model[0].bias[::2] * (1 + 2.0**-18)  # type: ignore[index, union-attr]
        model[2].weight[:, 1::2] = -model[2].weight[:, ::2]  # type: ignore[index, union-attr]
    return model


def test_rounding_never_lifts_a_bound_with_planes_above_a_true_value() -> None:
    checked = 0
    for seed in range(6):
        model = cancelling(seed)
        net = trace(copy.deepcopy(model).double(), (6,)).to()
        x = torch.rand(1, 6, generator=torch.Generator().manual_seed(seed)).double()
        box = Box.linf(x, 2.0**-5)
        bounds = sound_bounds(net, box)
        zero = torch.zeros(1, dtype=torch.int64)
        rows = torch.tensor([[[[1.0, -1.0]]]], dtype=torch.float64)
        for number in range(3):
            reads = all_reads(bounds, 0)
            planes = {read.act: read.plane(bounds, random_choice(read, number)) for read in reads}
            function = LowerBound(bounds, zero, rows, planes=planes, grouped=Grouped.of(zero, 1))
            bound = Fraction(float(function.sound_value(function.start(), function.no_splits())))
            checked += len(planes)
            for _ in range(8):
                corner = torch.where(torch.rand(6) < 0.5, box.lower[0], box.upper[0])
                true = outputs_at(model, fractions(corner)).reshape(-1)
                assert bound <= true[0] - true[1]
    assert checked > 10


def affine_chain(seed: int) -> nn.Sequential:
    """Two linear layers whose sums nearly cancel, pair by pair, around zero at the input of halves."""
    generator = torch.Generator().manual_seed(seed)
    first, second = nn.Linear(3, 16).double(), nn.Linear(16, 3).double()
    with torch.no_grad():
        for layer in (first, second):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64))
        first.bias.fill_(1e6)
        first.weight[1::2] = first.weight[::2]
        second.weight[:, 1::2] = -second.weight[:, ::2] * (1 + 1e-9)
        second.bias.zero_()
        second.bias.sub_(second(first(torch.full((1, 3), 0.5, dtype=torch.float64)))[0])
    return nn.Sequential(first, second)


def test_planes_that_touch_their_neuron_lie_above_it_in_real_numbers() -> None:
    """Without multipliers a plane touches in the corners where the neuron is least and greatest."""
    short = 0
    for seed in range(10):
        chain = affine_chain(seed)
        net = trace(nn.Sequential(*chain, nn.ReLU(), nn.Linear(3, 2).double()), (3,)).to()
        box = Box.linf(torch.full((1, 3), 0.5, dtype=torch.float64), 2.0**-4)
        bounds = sound_bounds(net, box)
        (read,) = all_reads(bounds, 0)
        choice = replace(random_choice(read, seed), low=0 * read.bias, high=0 * read.bias)
        plane, bare = read.plane(bounds, choice), read.plane(replace(bounds, slack=None), choice)
        (slopes,) = plane.slope.values()
        for unit, column in enumerate(read.column[0].tolist()):
            for up in (True, False):
                corner = fractions(torch.where((slopes[0, unit] > 0) == up, box.upper[0], box.lower[0]))
                value = max(outputs_at(chain, corner)[column], Fraction(0)) - fractions(slopes[0, unit]) @ corner
                assert value <= Fraction(float(plane.const[0, unit]))
                short += value > Fraction(float(bare.const[0, unit]))
    assert short > 0  # rounding alone would have failed


@pytest.fixture
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers to zero")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("exponents", [(-1022,), (900, -520, -520)], ids=["the plane's own", "of layers before"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_planes_hold_where_products_are_flushed_to_zero(exponents: tuple[int, ...], sign: float) -> None:
    """A plane that touches its neuron in both corners, of products too small for a number."""
    linears = [nn.Linear(1, 1, bias=False).double() for _ in exponents]
    with torch.no_grad():
        for linear, exponent in zip(linears, exponents, strict=True):
            linear.weight.fill_(sign * 1.5 * 2.0**exponent)
    net = trace(nn.Sequential(*linears, nn.ReLU(), nn.Linear(1, 2).double()), (1,)).to()
    one = torch.ones(1, 1, dtype=torch.float64)
    bounds = sound_bounds(net, Box(-one, one), torch.float64)
    (read,) = all_reads(bounds, 0)
    plane = read.plane(bounds, Choice(torch.full_like(read.weight, 0.5), 0 * read.bias, 0 * read.bias))
    (slope,) = plane.slope.values()
    for x in (-1, 1):
        (z,) = outputs_at(nn.Sequential(*linears), np.array([Fraction(x)]))
        assert max(z, 0) <= Fraction(float(slope)) * x + Fraction(float(plane.const))


def test_products_by_group_are_those_of_each_row_with_the_matrix_of_its_group() -> None:
    generator = torch.Generator().manual_seed(0)
    for batch, groups in ((1, 1), (7, 1), (90, 2), (200, 5), (3, 9)):
        group = torch.randint(groups + 1, (batch,), generator=generator)
        rows = torch.randn(batch, 4, generator=generator, dtype=torch.float64)
        rows[group == groups] = 0  # of no group
        table = torch.randn(groups, 4, 6, generator=generator, dtype=torch.float64)
        want = torch.einsum("bu,bun->bn", rows, table[group.clamp(max=groups - 1)])
        for blocks in (False, True):
            torch.testing.assert_close(Grouped.of(group, groups, blocks=blocks).product(rows, table), want)
    even = Grouped.even(5, 3, torch.device("cpu"))
    rows = torch.randn(15, 4, generator=generator, dtype=torch.float64)
    table = torch.randn(5, 4, 6, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(even.product(rows, table), Grouped.of(even.group, 5).product(rows, table))


def test_margins_together_have_the_bounds_that_each_has_alone() -> None:
    """Groups of different images have different numbers of neurons; fillers change nothing."""
    net, box = cases()[0]
    bounds = sound_bounds(net, box)
    classes = net.output_shape[0]
    margins = [(image, target) for image in range(2) for target in range(1, classes)]
    groups = [Group.of(bounds, *margin, bounds.open[margin[0]], torch.float64) for margin in margins]
    groups = [replace(g, choice={i: random_choice(r, i + k) for i, r in g.reads.items()}) for k, g in enumerate(groups)]
    assert len({group.slopes for group in groups}) > 1
    image = torch.tensor([group.image for group in groups] + [0])
    target = torch.tensor([group.target for group in groups] + [0])  # the last one has no planes
    rows = torch.randn(len(image), 1, 1, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def values(members: list[Group], some: slice) -> Tensor:
        planes = UpperPlanes.of(members, bounds, None, classes)
        grouped = planes.grouped(image[some], target[some])
        function = LowerBound(bounds, image[some], rows[some], planes=planes.search, grouped=grouped)
        return function.value(function.start(), function.no_splits())[0]

    together = values(groups, slice(None))
    for k, group in enumerate(groups):
        torch.testing.assert_close(together[k], values([group], slice(k, k + 1))[0], rtol=1e-9, atol=1e-9)
    plain = LowerBound(bounds, image[-1:], rows[-1:])
    torch.testing.assert_close(together[-1:], plain.value(plain.start(), plain.no_splits())[0])
