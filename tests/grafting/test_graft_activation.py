"""The grafted activation by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bounds_cases
from lipgraft.activations import curve_of
from lipgraft.errors import SettingsError
from lipgraft.grafting import GraftedActivation
from lipgraft.network import trace

BASES = {name: make() for name, make in bounds_cases.BASES.items()}


@pytest.mark.parametrize("kind", BASES)
def test_grafted_neurons_are_lines_and_the_others_keep_their_activation(kind):
    base, mask = BASES[kind], torch.tensor([[True, False], [False, True]])
    graft = GraftedActivation(base, mask, slope=0.3, intercept=-0.1)
    z = torch.randn(5, 2, 2)
    h = graft(z)
    torch.testing.assert_close(h[:, mask], 0.3 * z[:, mask] - 0.1)
    torch.testing.assert_close(h[:, ~mask], base(z)[:, ~mask], rtol=0, atol=0)


def test_gradients_reach_gamma_and_omega_only_where_grafted():
    mask = torch.tensor([True, False, True])
    graft = GraftedActivation(nn.ReLU(), mask)
    z = torch.tensor([[1.0, 2.0, -3.0], [0.5, -1.0, 2.0]], requires_grad=True)
    graft(z).sum().backward()
    torch.testing.assert_close(graft.gamma.grad, torch.tensor([1.5, 0.0, -1.0]))
    torch.testing.assert_close(graft.omega.grad, torch.tensor([2.0, 0.0, 2.0]))
    torch.testing.assert_close(z.grad, torch.tensor([[0.4, 1.0, 0.4], [0.4, 0.0, 0.4]]))


def test_nan_in_a_line_that_is_not_used_never_shows():
    graft = GraftedActivation(nn.ReLU(), torch.tensor([True, False]))
    with torch.no_grad():
        graft.gamma[1] = graft.omega[1] = float("nan")
    z = torch.tensor([[1.0, 2.0]], requires_grad=True)
    h = graft(z)
    h.sum().backward()
    assert h.isfinite().all()
    assert z.grad.isfinite().all()
    assert graft.gamma.grad.isfinite().all()


def test_infinity_in_a_neuron_that_is_not_grafted_leaves_the_gradient_of_the_lines_finite():
    graft = GraftedActivation(nn.Sigmoid(), torch.tensor([True, False]))
    z = torch.tensor([[1.0, float("inf")]])
    graft(z).sum().backward()
    torch.testing.assert_close(graft.gamma.grad, torch.tensor([1.0, 0.0]))


def test_an_in_place_base_trains_like_one_that_is_not():
    mask = torch.tensor([True, False, False])
    z = torch.randn(4, 3)
    gradients = []
    for inplace in (False, True):
        graft, x = GraftedActivation(nn.ReLU(inplace=inplace), mask), z.clone().requires_grad_()
        (graft(x * 1.0) ** 2).sum().backward()
        gradients.append((x.grad, graft.gamma.grad))
    for plain, in_place in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, in_place, rtol=0, atol=0)


def test_state_names_are_mask_gamma_and_omega():
    state = GraftedActivation(nn.ReLU(), torch.zeros(3, dtype=torch.bool)).state_dict()
    assert set(state) == {"mask", "gamma", "omega"}
    assert state["mask"].dtype == torch.bool


@pytest.mark.parametrize("kind", BASES)
def test_the_tracer_sees_the_kind_and_the_live_line(kind):
    graft = GraftedActivation(BASES[kind], torch.tensor([True, False, True]), slope=0.7)
    network = trace(nn.Sequential(nn.Linear(2, 3), graft, nn.Linear(3, 2)), (2,))
    ((_, node),) = network.activations()
    assert (node.name, node.curve) == ("1", curve_of(BASES[kind]))
    assert node.graft is not None
    assert node.graft.gamma is graft.gamma
    assert node.graft.mask.equal(graft.mask)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": torch.ones(3)}, "must be a boolean tensor"),
        ({"slope": torch.zeros(2)}, "slope must be a number or a tensor of the mask's shape"),
        ({"intercept": float("nan")}, "intercept must be finite"),
        ({"base": GraftedActivation(nn.ReLU(), torch.zeros(3, dtype=torch.bool))}, "grafted already"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    given = {"base": nn.ReLU(), "mask": torch.zeros(3, dtype=torch.bool), **arguments}
    with pytest.raises(SettingsError, match=message):
        GraftedActivation(**given)


def test_an_input_of_another_shape_is_refused_instead_of_broadcast():
    graft = GraftedActivation(nn.ReLU(), torch.zeros(3, 1, 1, dtype=torch.bool))
    with pytest.raises(SettingsError, match=r"shape \(3, 1, 1\), got \(3, 4, 4\)"):
        graft(torch.zeros(2, 3, 4, 4))
