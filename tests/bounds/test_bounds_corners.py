"""Planes around curves, exact at a point: true of every input, wherever that point is, and better than lines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.ascent import AlphaSettings
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.margins import true_minus
from lipgraft.bounds.reach import Reach
from lipgraft.bounds.refine import Sound, refine
from lipgraft.box import Box
from lipgraft.grafting import GraftedActivation
from lipgraft.network import Network, evaluate, trace

KINDS = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU, "silu": nn.SiLU, "softplus": nn.Softplus}
BOXES = 3


def module(kind: str) -> nn.Sequential:
    """Two convolutions and a vector of curves; some neurons of the first layer are lines."""
    generator = torch.Generator().manual_seed(2)
    mask = torch.rand(3, 5, 5, generator=generator) < 0.3
    first = GraftedActivation(KINDS[kind](), mask, 0.5, -0.1)
    layers = [nn.Conv2d(2, 3, 3, padding=1, stride=2), first, nn.Conv2d(3, 4, 3), KINDS[kind](), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(36, 6), KINDS[kind](), nn.Linear(6, 3))
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                size = layer.weight[0].numel() ** 0.5
                layer.weight.copy_(2 * torch.randn(layer.weight.shape, generator=generator) / size)
    return model.double()


def network(kind: str) -> Network:
    return trace(module(kind), (2, 9, 9)).to()


def box(eps: float = 0.15) -> Box:
    return Box.linf(torch.rand(BOXES, 2, 9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64), eps)


def points(inside: Box, count: int) -> Tensor:
    """Corners, and points anywhere: (count, BOXES, *shape)."""
    share = torch.rand(count, *inside.lower.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    share[::2] = share[::2].round()
    return inside.lower + share * (inside.upper - inside.lower)


def refined(net: Network, inside: Box) -> tuple[NeuronBounds, list[tuple[Tensor, Tensor]]]:
    """Sound bounds with all that planes may use, and the intervals of all nodes."""
    prepared = prepare(net, inside, sound_for=torch.float32)
    reach: dict[int, Reach] = {}
    sound = Sound(net, prepared.rounding, prepared.errors)  # type: ignore[arg-type]
    found = refine(net, prepared.intervals, "vectors", AlphaSettings(4), 64, sound=sound, reach=reach)
    layout = Layout.of(net, net.output)
    bounds = NeuronBounds.of(layout, found, prepared.rounding)
    return NeuronBounds(**{**vars(bounds), "reach": reach}), found


def margins(bounds: NeuronBounds) -> LowerBound:
    image = torch.arange(BOXES)
    rows = true_minus(torch.zeros_like(image), torch.ones_like(image), 3, torch.float64)[:, None, None]
    return LowerBound(bounds, image, rows)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_planes_hold_at_every_sampled_point_wherever_they_are_exact(kind: str) -> None:
    net, inside = network(kind), box()
    bounds, _ = refined(net, inside)
    assert bounds.reach
    lines = margins(bounds)
    generator = torch.Generator().manual_seed(3)
    difference = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    seen = torch.stack([evaluate(net, x)[net.output] @ difference for x in points(inside, 60)])
    for corner in (False, True):
        for level in (1, 2):
            place = torch.rand(lines.root[0].shape, generator=generator, dtype=torch.float64)
            place = place.round() if corner else place
            planes = lines.exact_at(place, torch.full((BOXES,), level))
            slopes, const = planes.linear(lines.start(), lines.no_splits())
            for x, value in zip(points(inside, 60), seen, strict=True):
                root = evaluate(net, x)[bounds.layout.path.root].flatten(1)
                assert bool(((slopes * root).sum(1) + const <= value).all())
            assert bool((planes.sound_value(lines.start(), lines.no_splits()) <= seen.amin(0)).all())


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_better_bounds_of_neurons_hold_and_so_does_what_is_known_of_them(kind: str) -> None:
    net, inside = network(kind), box()
    bounds, found = refined(net, inside)
    before = prepare(net, inside, sound_for=torch.float32).intervals
    for i, act in net.activations():
        node = act.inputs[0]
        for x in points(inside, 60):
            values = evaluate(net, x)
            z, root = values[node], values[bounds.layout.path.root].flatten(1)
            assert bool((found[node][0] <= z).all())
            assert bool((z <= found[node][1]).all())
            if i in bounds.reach:
                reach = bounds.reach[i]
                assert bool(((reach.low @ root[..., None])[..., 0] + reach.low_const <= z).all())
                assert bool((z <= (reach.high @ root[..., None])[..., 0] + reach.high_const).all())
    second, third = (act.inputs[0] for _, act in list(net.activations())[1:])
    for node in (second, third):  # a convolution, whose neurons are bounded in their windows, and a vector
        width, old = (float((ends[1] - ends[0]).mean()) for ends in (found[node], before[node]))
        assert width < 0.98 * old


@pytest.mark.parametrize("kind", ["tanh", "sigmoid"])
@torch.no_grad()
def test_planes_beat_lines_where_the_bound_is_attained(kind: str) -> None:
    bounds, _ = refined(network(kind), box(0.02))
    lines = margins(bounds)
    alpha, none = lines.start(), lines.no_splits()
    plain = lines.value(alpha, none)[0]
    found = []
    for level in (1, 2):
        levels = torch.full((BOXES,), level)
        place = lines.best_place(alpha, none, levels)
        found.append(lines.exact_at(place, levels).value(alpha, none)[0])
    assert bool((found[0] > plain).all())
    assert float(found[1].mean()) > float(found[0].mean())


@torch.no_grad()
def test_one_layer_is_exact_where_its_planes_are() -> None:
    """With one hidden layer the planes' function has the network's own value at their place."""
    generator = torch.Generator().manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    for part in model.parameters():
        part.copy_(torch.randn(part.shape, generator=generator))
    net = trace(model, (5,)).to()
    inside = Box.linf(torch.rand(BOXES, 5, generator=generator, dtype=torch.float64), 0.3)
    bounds = NeuronBounds.of(Layout.of(net, net.output), prepare(net, inside).intervals)
    lines = margins(bounds)
    place = torch.rand(BOXES, 5, generator=generator, dtype=torch.float64).round()
    slopes, const = lines.exact_at(place).linear(lines.start(), lines.no_splits())
    x = torch.where(place > 0, inside.upper, inside.lower)
    logits = model(x)
    assert torch.allclose((slopes * x).sum(1) + const, logits[:, 0] - logits[:, 1], atol=1e-4)
