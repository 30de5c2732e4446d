"""Ascents by mean slopes: the network's own values, slopes by their formula, and starts where the gradient is zero."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lipgraft.attacks import attack, wide
from lipgraft.attacks.ascent import input_gradient
from lipgraft.bounds.memory import Late, never
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.models import ACTIVATIONS
from lipgraft.network import Network, evaluate, trace


def network(*layers: nn.Module, shape: tuple[int, ...] = (3,)) -> Network:
    model = nn.Sequential(*layers)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return trace(model, shape)


def total(values: Tensor) -> Tensor:
    return values.sum(1)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("width", [1e-3, 0.5, 3.0])
def test_the_values_are_the_networks_own_whatever_the_width(activation: str, width: float) -> None:
    torch.manual_seed(0)
    net = network(
        nn.Linear(3, 7), ACTIVATIONS[activation](), nn.Linear(7, 5), ACTIVATIONS[activation](), nn.Linear(5, 4)
    )
    x = torch.randn(6, 3)
    torch.testing.assert_close(wide.logits(net, x, torch.full((6,), width)), evaluate(net, x)[net.output])


def test_a_slope_is_the_mean_over_the_neighbourhood() -> None:
    """relu at -0.1, of a neighbourhood of 0.2 to either side: (0.1 - 0) / 0.4."""
    net = network(nn.Identity(), nn.ReLU(), shape=(1,))
    x = torch.tensor([[-0.1]])
    gradient, value = input_gradient(lambda p: wide.logits(net, p, torch.tensor([2.0])), x, total)
    assert float(value) == 0
    torch.testing.assert_close(gradient, torch.tensor([[0.25]]))


def test_each_row_has_a_neighbourhood_of_its_own() -> None:
    net = network(nn.Identity(), nn.ReLU(), shape=(1,))
    x = torch.tensor([[-0.1], [-0.1], [0.1]])
    widths = torch.tensor([2.0, 0.5, 0.5])
    gradient, _ = input_gradient(lambda p: wide.logits(net, p, widths), x, total)
    torch.testing.assert_close(gradient.flatten(), torch.tensor([0.25, 0.0, 1.0]))


def test_lines_have_their_own_slope() -> None:
    line = GraftedActivation(nn.ReLU(), torch.ones(4, dtype=torch.bool), 0.4, 0.1)
    torch.manual_seed(1)
    first, last = nn.Linear(3, 4), nn.Linear(4, 2)
    net = network(first, line, last)
    gradient, _ = input_gradient(lambda p: wide.logits(net, p, torch.full((5,), 3.0)), torch.randn(5, 3), total)
    torch.testing.assert_close(gradient, (0.4 * last.weight @ first.weight).sum(0).expand(5, 3))


def dead() -> Network:
    """relu(x1 + x2 + x3 - 2): zero, with its gradient, in most of the box [-1, 1]^3."""
    first = nn.Linear(3, 1)
    first.weight.data, first.bias.data = torch.ones(1, 3), torch.tensor([-2.0])
    return network(first, nn.ReLU())


def climb(net: Network, start: Tensor, width: float = 3.0, late: Late = never) -> Tensor:
    ones = torch.ones_like(start)
    first, widths = torch.full((len(start),), 0.5), torch.full((len(start),), width)
    return wide.Wide(net, start, -ones, ones, ones, first=first, width=widths, steps=20).to_the_end(total, late)


def test_a_climb_leaves_a_place_where_the_gradient_is_zero() -> None:
    start = torch.zeros(4, 3)
    gradient, _ = input_gradient(lambda p: evaluate(dead(), p)[-1], start, total)
    assert not gradient.any()
    assert (evaluate(dead(), climb(dead(), start))[-1] > 0.9).all()  # of at most 1


@pytest.mark.parametrize("width", [1e-3, 0.3, 3.0])
def test_a_climb_ends_in_the_box_and_no_lower_than_it_began(width: float) -> None:
    torch.manual_seed(2)
    net = network(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 2))
    start = torch.rand(20, 3) * 2 - 1
    end = climb(net, start, width=width)
    assert (end.abs() <= 1).all()
    assert (total(evaluate(net, end)[-1]) >= total(evaluate(net, start)[-1])).all()
    assert (total(evaluate(net, end)[-1]) > total(evaluate(net, start)[-1]) + 0.1).any()


def test_a_climb_that_is_late_stays_where_it_is_and_nan_moves_nothing() -> None:
    start = torch.full((2, 3), 0.5)
    assert torch.equal(climb(dead(), start, late=lambda: True), start)
    first = nn.Linear(3, 1)
    first.weight.data.fill_(torch.nan)
    assert torch.equal(climb(network(first, nn.ReLU()), start), start)


def test_restarts_have_widths_of_their_own_from_end_to_end() -> None:
    widths = wide.widths(torch.arange(40), torch.zeros(1, dtype=torch.float64))
    assert widths[0] > 1
    low, high = wide.WIDTHS
    assert low <= widths.amin() < 1.2 * low
    assert high >= widths.amax() > high / 1.2
    places = widths.log().sort().values
    assert (places.diff() > 0).all()
    assert places.diff().amax() < 3 * math.log(high / low) / 40  # no gap between them


def test_the_attack_by_name_breaks_what_hides_its_gradients() -> None:
    """f_0 - f_1 = 1 - 10 relu(x_1 + x_2 + x_3 - 2), around 0.2, where the others see no gradient at all."""
    model = nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 2))
    model[0].weight.data, model[0].bias.data = torch.ones(1, 3), torch.tensor([-2.0])
    model[2].weight.data, model[2].bias.data = torch.tensor([[0.0], [10.0]]), torch.tensor([1.0, 0.0])
    x, y = torch.full((4, 3), 0.2), torch.zeros(4, dtype=torch.int64)
    for name in ("pgd", "pgd-targeted", "apgd-targeted"):
        assert (model(attack(model, x, y, 0.6, name, steps=20, restarts=10)).argmax(1) == y).all()
    broken = attack(model, x, y, 0.6, "pgd-wide", steps=20, restarts=10)
    assert (model(broken).argmax(1) != y).all()
    assert ((broken - x).abs() <= 0.6 + 1e-6).all()
