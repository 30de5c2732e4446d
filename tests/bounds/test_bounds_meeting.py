"""Functions around neurons that meet at one place, and planes in all layers: true of every input, and better."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from mpmath import mp
from torch import Tensor, nn

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.grouped import Grouped
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.margins import true_minus
from lipgraft.bounds.meeting import fitted, joined, meeting
from lipgraft.bounds.reach import Reach, WindowReach
from lipgraft.box import Box
from lipgraft.network import evaluate, trace
from test_bounds_corners import KINDS, box, network, points

DIFFERENCE = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)


def places(shape: torch.Size) -> list[Tensor]:
    """A corner, and a point anywhere."""
    anywhere = torch.rand(1, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return [anywhere.round(), anywhere]


def dense(known: Reach | WindowReach) -> tuple[Tensor, Tensor]:
    """The slopes below and above as matrices over all values of the root."""
    if isinstance(known, Reach):
        return known.low[0], known.high[0]
    _, places, channels, _ = known.low.shape
    out = []
    for rows in (known.low, known.high):
        table = rows.new_zeros(channels, places, known.values + 1)
        for p in range(places):
            table[:, p].index_add_(1, known.index[p], rows[0, p])
        out.append(table.flatten(0, 1)[:, :-1])
    return out[0], out[1]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_functions_hold_at_every_sampled_point_and_so_do_planes_that_rest_on_them(kind: str) -> None:
    net, inside = network(kind), box()[:1]
    prepared = prepare(net, inside, sound_for=torch.float32)
    bounds = NeuronBounds.of(Layout.of(net, net.output), prepared.intervals, prepared.rounding)
    image = torch.zeros(1, dtype=torch.int64)
    lines = LowerBound(bounds, image, true_minus(image, image + 1, 3, torch.float64)[:, None, None])
    alpha, none = lines.start(), lines.no_splits()
    seen = [evaluate(net, x) for x in points(box(), 200)[:, :1]]
    for place in places(bounds.root[0].shape[1:]):
        known = meeting(net, prepared.intervals, place, prepared.rounding)
        assert [type(found) for found in known.values()] == [WindowReach, Reach]
        planes = lines.exact_at(place, None, known)
        slopes, const = planes.linear(alpha, none)
        sure = planes.sound_value(alpha, none)
        for values in seen:
            root = values[bounds.layout.path.root].flatten()
            for i, found in known.items():
                low, high = dense(found)
                z = values[net.nodes[i].inputs[0]].flatten()
                assert bool((low @ root + found.low_const.flatten() <= z).all())
                assert bool((z <= high @ root + found.high_const.flatten()).all())
            margin = values[net.output] @ DIFFERENCE
            assert bool(((slopes * root).sum(1) + const <= margin).all())
            assert bool((sure <= margin).all())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_any_share_of_planes_holds_and_a_fit_is_no_worse_than_lines_or_planes_alone(kind: str) -> None:
    net, inside = network(kind), box(0.05)[:1]
    prepared = prepare(net, inside, sound_for=torch.float32)
    bounds = NeuronBounds.of(Layout.of(net, net.output), prepared.intervals, prepared.rounding)
    image = torch.zeros(1, dtype=torch.int64)
    lines = LowerBound(bounds, image, true_minus(image, image + 1, 3, torch.float64)[:, None, None])
    alpha, none = lines.start(), lines.no_splits()
    place = lines.best_place(alpha, none)
    known = meeting(net, prepared.intervals, place, prepared.rounding)
    margin = torch.stack([evaluate(net, x)[net.output] @ DIFFERENCE for x in points(box(0.05), 200)[:, :1]]).min()
    planes = lines.exact_at(place, None, known)
    generator = torch.Generator().manual_seed(9)
    for _ in range(3):
        share = {
            i: torch.rand(hinged.used.shape, generator=generator, dtype=torch.float64)
            for i, hinged in planes.hinged.items()
        }
        assert float(planes.sharing(share).sound_value(alpha, none)) <= float(margin)
    nothing = {i: torch.zeros_like(hinged.used, dtype=torch.float64) for i, hinged in planes.hinged.items()}
    plain = lines.value(alpha, none)[0]
    assert torch.allclose(planes.sharing(nothing).value(alpha, none)[0], plain)
    found = fitted(lines, place, alpha, known)
    sure = found.planes(lines, known).sound_value(found.alpha, none)
    assert float(sure) <= float(margin)
    assert float(sure) == pytest.approx(float(found.bound), abs=1e-6)
    assert float(found.bound) > float(plain)


@torch.no_grad()
def test_windows_say_the_same_as_matrices() -> None:
    net, inside = network("tanh"), box()[:1]
    prepared = prepare(net, inside)
    root = Layout.of(net, net.output).path.root
    place = places(prepared.intervals[root][0].shape[1:])[1]
    windows = next(iter(meeting(net, prepared.intervals, place).values()))
    assert isinstance(windows, WindowReach)
    low, high = dense(windows)
    whole = Reach(low[None], windows.low_const, high[None], windows.high_const)
    generator = torch.Generator().manual_seed(6)
    one = Grouped.of(torch.zeros(5, dtype=torch.int64), 1)
    point = torch.rand(5, low.shape[1], generator=generator, dtype=torch.float64)
    rows = torch.rand(5, len(low), generator=generator, dtype=torch.float64)
    ends = -torch.ones_like(rows), torch.ones_like(rows)
    for mine, its in zip(windows.around(point, one, ends), whole.around(point, one, ends), strict=True):
        assert torch.allclose(mine, its, atol=1e-12)
    assert torch.allclose(windows.spread(rows, one), whole.spread(rows, one), atol=1e-12)


@pytest.mark.parametrize("kind", ["tanh", "sigmoid"])
@torch.no_grad()
def test_functions_meet_in_a_corner_and_planes_beat_those_of_the_first_layer(kind: str) -> None:
    net, inside = network(kind), box(0.02)[:1]
    prepared = prepare(net, inside)
    bounds = NeuronBounds.of(Layout.of(net, net.output), prepared.intervals)
    image = torch.zeros(1, dtype=torch.int64)
    lines = LowerBound(bounds, image, true_minus(image, image + 1, 3, torch.float64)[:, None, None])
    alpha, none = lines.start(), lines.no_splits()
    place = lines.best_place(alpha, none)
    first = lines.exact_at(place).value(alpha, none)[0]
    corner = place.round()
    for i, found in meeting(net, prepared.intervals, corner).items():
        point = (bounds.root[0] + corner * (bounds.root[1] - bounds.root[0])).flatten(1)
        lower, upper = (end.flatten(1) for end in prepared.intervals[net.nodes[i].inputs[0]])
        _, far = found.around(point, Grouped.of(image, 1), (lower, upper))
        assert float(far.mean()) < 0.02 * float((upper - lower).mean())
    known = meeting(net, prepared.intervals, place)
    assert bool((fitted(lines, place, alpha, known).bound > first).all())


@pytest.mark.long
@torch.no_grad()
def test_several_boxes_together_have_the_bounds_of_each_alone() -> None:
    net, inside = network("tanh"), box(0.05)
    layout, found = Layout.of(net, net.output), []
    parts, where = [], []
    for k in (slice(0, 1), slice(1, 2), slice(0, 2)):
        prepared = prepare(net, inside[k], sound_for=torch.float32)
        bounds = NeuronBounds.of(layout, prepared.intervals, prepared.rounding)
        image = torch.arange(len(bounds.lower))
        rows = true_minus(torch.zeros_like(image), torch.ones_like(image), 3, torch.float64)[:, None, None]
        lines = LowerBound(bounds, image, rows)
        if len(image) == 1:
            where.append(lines.best_place(lines.start(), lines.no_splits()))
            parts.append(meeting(net, prepared.intervals, where[-1], prepared.rounding))
        known = parts[-1] if len(image) == 1 else joined(parts)
        place = where[-1] if len(image) == 1 else torch.cat(where)
        found.append(fitted(lines, place, lines.start(), known).bound)
    assert torch.allclose(torch.cat(found[:2]), found[2], atol=1e-9)


def cancelling(seed: int, kind: str) -> tuple[nn.Sequential, Tensor]:
    """A network whose large weights cancel in its biases, so that rounding shows, and an image."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = torch.rand(1, 6, generator=generator, dtype=torch.float64)
    layers: list[nn.Module] = []
    value = x
    for inputs, outputs, size in ((6, 8, 2.0**16), (8, 6, 2.0**9), (6, 5, 1.0), (5, 3, 1.0)):
        linear = nn.Linear(inputs, outputs).double()
        linear.weight.data = size * random(outputs, inputs)
        linear.bias.data = random(outputs) - (linear.weight @ value[0])
        layers += [linear, KINDS[kind]()]
        value = layers[-1](linear(value)).detach()
    return nn.Sequential(*layers[:-1]), x


def exactly(model: nn.Sequential, kind: str, point: Tensor) -> list[list[Any]]:
    """The values of all linear layers, to 60 digits."""
    curve = {"tanh": mp.tanh, "sigmoid": lambda z: 1 / (1 + mp.exp(-z))}[kind]
    values, out = [mp.mpf(v) for v in point.flatten().tolist()], []
    for layer in model:
        if isinstance(layer, nn.Linear):
            rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            values = [
                mp.fsum([mp.mpf(b), *(mp.mpf(w) * v for w, v in zip(row, values, strict=True))]) for row, b in rows
            ]
            out.append(values)
        else:
            values = [curve(v) for v in values]
    return out


@pytest.mark.parametrize("kind", ["tanh", "sigmoid"])
@torch.no_grad()
def test_planes_hold_in_exact_arithmetic_where_numbers_cancel(kind: str) -> None:
    """Where they touch their curves, and to 60 digits; without what they give away for rounding they would not."""
    wrong = 0
    with mp.workdps(60):
        for seed in range(6):
            model, x = cancelling(seed, kind)
            net, inside = trace(model, (6,)).to(), Box.linf(x, 2.0**-25)
            prepared = prepare(net, inside, sound_for=torch.float32)
            image = torch.zeros(1, dtype=torch.int64)
            rows = true_minus(image, image + 1, 3, torch.float64)[:, None, None]
            for place in places(torch.Size([6])):
                point = inside.lower + place * (inside.upper - inside.lower)
                seen = exactly(model, kind, point)
                for rounding in (prepared.rounding, None):
                    bounds = NeuronBounds.of(Layout.of(net, net.output), prepared.intervals, rounding)
                    known = meeting(net, prepared.intervals, place, rounding)
                    assert len(known) == 2
                    planes = LowerBound(bounds, image, rows).exact_at(place, None, known)
                    found = [planes.linear(planes.start(), planes.no_splits())]
                    goals = [[seen[3][0] - seen[3][1]]]
                    for layer, (low, high) in enumerate((k.low, k.high) for k in known.values()):
                        reach = list(known.values())[layer]
                        found += [(low[0], reach.low_const[0]), (-high[0], -reach.high_const[0])]
                        goals += [seen[layer + 1], [-z for z in seen[layer + 1]]]
                    for (slopes, const), goal in zip(found, goals, strict=True):
                        for slope, k, z in zip(slopes.tolist(), const.tolist(), goal, strict=True):
                            terms = (mp.mpf(s) * mp.mpf(v) for s, v in zip(slope, point[0].tolist(), strict=True))
                            holds = mp.fsum(terms) + mp.mpf(k) <= z
                            assert holds or rounding is None
                            wrong += not holds
    assert wrong > 10


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_plane_of_every_neuron_holds_near_the_place_where_it_is_exact(kind: str) -> None:
    """Few inputs and one neuron at a time: nothing else hides a plane that is a little too steep, or too close."""
    for seed, inputs in enumerate((1, 2, 3, 1, 2, 3)):
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.rand(shape, generator=generator, dtype=torch.float64)

        sizes = (inputs, 5, 4, 3)
        layers = [(nn.Linear(a, b), KINDS[kind]()) for a, b in pairwise(sizes)]
        model = nn.Sequential(*(part for pair in layers for part in pair)).double()
        for part in model.parameters():
            part.copy_(4 * random(*part.shape) - 2)
        net, inside = trace(model, (inputs,)).to(), Box.linf(random(1, inputs), 0.3)
        prepared = prepare(net, inside, sound_for=torch.float32)
        place = random(1, inputs).round() if seed < 3 else random(1, inputs)
        width = inside.upper - inside.lower
        near = torch.logspace(-5, 0, 400, dtype=torch.float64)[:, None] * (random(400, inputs) - 0.5)
        x = inside.lower + width * torch.cat([random(200, inputs), random(200, inputs).round(), place + near]).clamp(
            0, 1
        )
        values = evaluate(net, x)
        known = meeting(net, prepared.intervals, place, prepared.rounding)
        for i, act in net.activations():
            bounds = NeuronBounds.of(Layout.of(net, i), prepared.intervals, prepared.rounding)
            mine = {j: found for j, found in known.items() if j in bounds.layout.places}
            count = act.shape[0]
            for side in (1.0, -1.0):
                rows = side * torch.eye(count, dtype=torch.float64)[:, None, None]
                lines = LowerBound(bounds, torch.zeros(count, dtype=torch.int64), rows)
                planes = lines.exact_at(place.expand(count, -1), None, mine)
                slopes, const = planes.linear(lines.start(), lines.no_splits())
                assert float((side * values[i] - x @ slopes.T - const).min()) >= -1e-9
