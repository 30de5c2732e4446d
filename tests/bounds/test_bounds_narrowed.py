"""Bounds and lines of subproblems: as if each had been worked out on its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lipgraft.bounds.crown import prepare
from lipgraft.bounds.implied import Implied
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.narrowed import Narrowed
from lipgraft.bounds.relaxations import relax
from lipgraft.bounds.splits import clamped
from lipgraft.box import Box
from lipgraft.grafting import apply
from lipgraft.network import trace

SHAPE = (2, 4, 4)
DEPTH = 5


def held(*, curve: type[nn.Module], graft: bool) -> NeuronBounds:
    """The bounds of four boxes, of a network whose activations are of two kinds."""
    g = torch.Generator().manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(2, 3, 3, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 9), curve(), nn.Linear(9, 4)
    ).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=g, dtype=torch.float64) / 3
    if graft:
        masks = {"1": torch.rand(3, 4, 4, generator=g) < 0.5}
        model = apply(model, masks, slope=0.3, intercept=0.1, input_shape=SHAPE)
    x = torch.rand(4, *SHAPE, generator=g, dtype=torch.float64)
    network = trace(model, SHAPE).to(dtype=torch.float64)
    with torch.no_grad():
        return NeuronBounds.of(Layout.of(network, network.output), prepare(network, Box.linf(x, 0.2)).intervals)


def random_splits(bounds: NeuronBounds, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The boxes of so many subproblems, and for each a few splits of different open neurons; some have fewer."""
    g = torch.Generator().manual_seed(count)
    image = torch.randint(4, (count,), generator=g)
    neuron = torch.full((count, DEPTH), bounds.layout.size)
    sign = torch.zeros(count, DEPTH, dtype=torch.float64)
    for row in range(count):
        mine = bounds.open[image[row]]
        mine = mine[mine < bounds.layout.size]
        depth = int(torch.randint(DEPTH + 1, (), generator=g))
        chosen = mine[torch.randperm(len(mine), generator=g)[:depth]]
        neuron[row, : len(chosen)] = chosen
        sign[row, : len(chosen)] = 2.0 * torch.randint(2, (len(chosen),), generator=g) - 1
    return image, neuron, sign


@pytest.mark.parametrize("implied", [False, True])
@pytest.mark.parametrize("count", [3, 11], ids=["fewer subproblems than boxes", "more"])
@pytest.mark.parametrize("curve", [nn.ReLU, nn.LeakyReLU])
@pytest.mark.parametrize("graft", [False, True])
def test_lines_are_those_of_the_bounds_that_splits_leave(
    graft: bool, curve: type[nn.Module], count: int, implied: bool
) -> None:
    bounds = held(curve=curve, graft=graft)
    layout = bounds.layout
    known = Implied.of(bounds, torch.float64) if implied else None
    assert (known is not None) == implied
    image, neuron, sign = random_splits(bounds, count)
    lower, upper = clamped(bounds.lower[image], bounds.upper[image], neuron, sign)
    if known is not None:
        lower, upper = known.narrowed(lower, upper, known.neurons[image], image, neuron, sign)
    found = Narrowed(bounds, image, neuron, sign, None, known)
    real = found.open < layout.size
    for end, whole in ((found.lower, lower), (found.upper, upper)):
        assert torch.equal(end[real], whole.gather(1, found.open)[real])
    lows, highs = layout.pieces(lower), layout.pieces(upper)
    for i, line in found.lines.items():
        alone = relax(layout.activation(i), lows[i], highs[i])
        for name, expected in vars(alone).items():
            here = getattr(line, name)
            assert (here is None) == (expected is None)
            if expected is not None:
                torch.testing.assert_close(here, expected, rtol=0, atol=0)
        assert torch.equal(found.slopes[:, layout.places[i]], alone.lower_slope.flatten(1))


def test_a_split_of_a_neuron_that_is_not_open_changes_no_line() -> None:
    bounds = held(curve=nn.ReLU, graft=True)
    closed = torch.tensor([n for n in range(bounds.layout.size) if n not in bounds.open[0].tolist()])[:DEPTH]
    image = torch.zeros(9, dtype=torch.int64)
    plain = Narrowed(bounds, image, image.new_zeros(9, 0), torch.zeros(9, 0, dtype=torch.float64), None, None)
    sign = torch.ones(9, len(closed), dtype=torch.float64)
    split = Narrowed(bounds, image, closed.expand(9, -1), sign, None, None)
    for i, line in plain.lines.items():
        assert torch.equal(line.upper_slope, split.lines[i].upper_slope)
    assert torch.equal(plain.slopes[:, :-1], split.slopes[:, :-1])
