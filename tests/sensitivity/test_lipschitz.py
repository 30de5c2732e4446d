"""The four notions of the local Lipschitz constant: sound, ordered, exact where they can be."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.grafting import apply
from lipgraft.models.layers import Normalise
from lipgraft.network import trace
from lipgraft.sensitivity import NOTIONS, UNITS, LipschitzSettings, lipschitz
from lipschitz_networks import ACTIVATIONS, SHAPES, dense, images, network, point_norms

UPPER = ("jacobian", "interval-jacobian")
# What is grafted is a line, whatever it was; its neighbours are of every sort: piecewise linear, monotone, neither.
CASES = [(kind, activation, False) for kind in SHAPES for activation in ACTIVATIONS]
CASES += [(kind, activation, True) for kind in SHAPES for activation in ("relu", "tanh", "gelu")]
EPS = 0.15


def inside(box: Box, seed: int, *, corner: bool) -> Tensor:
    share = torch.rand(box.lower.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.lerp(box.lower, box.upper, share.round() if corner else share)


@pytest.mark.parametrize(("kind", "activation", "grafted"), CASES)
def test_upper_bounds_dominate_jacobians_and_difference_quotients(kind: str, activation: str, grafted: bool) -> None:
    model, shape = network(kind, activation, grafted=grafted)
    x = images(shape)
    box = Box.linf(x, EPS)
    bounds = {method: lipschitz(model, x, EPS, method, per_output=True) for method in UPPER}
    for seed in range(25):
        a, b = inside(box, seed, corner=seed % 2 == 0), inside(box, seed + 1000, corner=False)
        near = torch.lerp(a, b, 0.01)
        with torch.no_grad():
            quotients = [
                (model(p) - model(q)).abs() / (p - q).flatten(1).abs().amax(1, keepdim=True)
                for p, q in ((a, b), (a, near))
            ]
        for seen in (point_norms(model, a), *quotients):
            for method, bound in bounds.items():
                assert bool((seen <= bound * (1 + 1e-9)).all()), method


@pytest.mark.parametrize(("kind", "activation", "grafted"), CASES)
def test_the_notions_are_ordered(kind: str, activation: str, grafted: bool) -> None:
    model, shape = network(kind, activation, seed=1, grafted=grafted)
    x = images(shape, seed=1)
    few = LipschitzSettings(samples=8, steps=4)
    sampled = lipschitz(model, x, EPS, "sampled", settings=few, per_output=True)
    jacobian, interval = (lipschitz(model, x, EPS, method, per_output=True) for method in UPPER)
    assert bool((sampled <= jacobian * (1 + 1e-9)).all())
    assert bool((jacobian <= interval).all())
    assert bool((point_norms(model, Box.linf(x, EPS).centre) <= sampled * (1 + 1e-9)).all())


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("together", [0, 4, 1000])
def test_every_part_of_the_jacobian_bound_is_sound(kind: str, together: int) -> None:
    """None, some, or all of the uncertain neurons bounded together."""
    model, shape = network(kind, "relu", seed=2)
    x = images(shape, seed=2)
    box = Box.linf(x, 0.3)
    settings = LipschitzSettings(together=together)
    bound = lipschitz(model, x, 0.3, settings=settings, per_output=True)
    for seed in range(100):
        assert bool((point_norms(model, inside(box, seed, corner=seed % 2 == 0)) <= bound * (1 + 1e-9)).all())


def test_bounding_neurons_together_pays() -> None:
    """A wide network with most neurons uncertain, where bounds of single neurons add up."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(50, 150), nn.ReLU(), nn.Linear(150, 150), nn.ReLU(), nn.Linear(150, 4)).double()
    x = images((50,))
    none, some, everything = (
        lipschitz(model, x, 0.3, settings=LipschitzSettings(together=count)) for count in (0, 150, 300)
    )
    interval = lipschitz(model, x, 0.3, "interval-jacobian")
    assert bool((everything < 0.5 * some).all())
    assert bool((some < none).all())
    assert bool((everything < 0.1 * interval).all())


@pytest.mark.parametrize("method", NOTIONS)
@pytest.mark.parametrize("units", UNITS)
def test_affine_networks_are_exact(method: str, units: str) -> None:
    model = nn.Sequential(Normalise((0.5,), (0.5,)), nn.Flatten(), nn.Linear(9, 5), nn.Linear(5, 3)).double()
    x = images((1, 3, 3))
    weight = model[3].weight @ model[2].weight * (2.0 if units == "pixel" else 1.0)
    norm = weight.abs().sum(1).max().expand(len(x))
    found = lipschitz(model, x, 0.1, method, units=units, low=None, high=None)
    torch.testing.assert_close(found, norm.detach())


@pytest.mark.parametrize("kind", SHAPES)
def test_a_network_of_lines_is_affine_hence_exact(kind: str) -> None:
    model, shape = network(kind, "tanh", grafted=False)
    nodes = [node for _, node in trace(model, shape).activations()]
    masks = {node.name: torch.ones(node.shape, dtype=torch.bool) for node in nodes}
    model = apply(model, masks, slope=0.4, intercept=0.1, input_shape=shape)
    x = images(shape)
    exact = point_norms(model, x).amax(1)
    for method in NOTIONS:
        torch.testing.assert_close(lipschitz(model, x, 0.1, method, low=None, high=None), exact)


@pytest.mark.parametrize("activation", ["relu", "leaky-relu"])
@pytest.mark.parametrize("kind", SHAPES)
def test_where_every_unit_is_stable_all_notions_agree(kind: str, activation: str) -> None:
    model, shape = network(kind, activation, seed=3)
    x = images(shape) * 0.8 + 0.1
    exact = point_norms(model, x)
    for method in NOTIONS:
        torch.testing.assert_close(lipschitz(model, x, 1e-6, method, per_output=True), exact)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("method", NOTIONS)
def test_a_radius_of_zero_gives_the_norm_at_the_point(method: str, activation: str) -> None:
    model, shape = network("convolutional", activation, seed=4)
    x = images(shape)
    eps = torch.tensor([0.0, 0.1, 0.0], dtype=torch.float64)
    found = lipschitz(model, x, eps, method, per_output=True)
    torch.testing.assert_close(found[::2], point_norms(model, x)[::2])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", SHAPES)
def test_interval_jacobians_grow_with_eps(kind: str, activation: str) -> None:
    """With interval bounds of the neurons too; other bounds choose their lines anew for each box."""
    model, shape = network(kind, activation, seed=5)
    x = images(shape)
    values = [lipschitz(model, x, eps, "interval-jacobian", bounds="ibp") for eps in (0.0, 0.01, 0.05, 0.1, 0.3)]
    for smaller, larger in itertools.pairwise(values):
        assert bool((smaller <= larger * (1 + 1e-12)).all())


@pytest.mark.parametrize("method", ["jacobian", "interval-jacobian", "output-width"])
def test_a_batch_equals_its_images_one_by_one(method: str) -> None:
    model, shape = network("convolutional", "relu", seed=6, grafted=True)
    x, eps = images(shape, 5), torch.tensor([0.0, 0.02, 0.3, 0.1, 0.05], dtype=torch.float64)
    together = lipschitz(model, x, eps, method, batch=5)
    alone = torch.cat([lipschitz(model, x[i : i + 1], eps[i : i + 1], method) for i in range(5)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("method", ["jacobian", "interval-jacobian", "sampled"])
def test_normalised_units_are_those_of_the_network_behind_the_normalisation(method: str) -> None:
    model, shape = network("convolutional", "relu", seed=7)
    assert isinstance(model, nn.Sequential)
    bare = model[1:]  # takes normalised inputs
    x = images(shape)
    inside_out = model[0](x)
    settings = LipschitzSettings(samples=1, steps=0)  # the same point for both
    found = lipschitz(model, x, 0.0, method, units="normalised", settings=settings)
    expected = lipschitz(bare, inside_out, 0.0, method, low=None, high=None, settings=settings)
    torch.testing.assert_close(found, expected)
    per_input = torch.tensor([0.2, 0.4], dtype=torch.float64).view(2, 1, 1)
    wide = lipschitz(model, x, 0.1, method, units="normalised", settings=settings)
    pixel = lipschitz(model, x, 0.1, method, settings=settings)
    assert bool((wide >= pixel * per_input.min() * (1 - 1e-9)).all())
    assert bool((wide <= pixel * per_input.max() * (1 + 1e-9)).all())


def test_the_output_width_is_divided_by_two_eps_even_where_the_box_is_clipped() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    nn.init.constant_(model[0].weight, 1.0)
    x = torch.tensor([[0.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(lipschitz(model, x, 0.1, "output-width").item(), 0.3 / 0.2)
    torch.testing.assert_close(lipschitz(model, x, 0.1, "output-width", low=None).item(), 2.0)


@pytest.mark.parametrize("bounds", ["ibp", "crown-ibp", "crown", "alpha-crown"])
def test_every_bound_method_serves(bounds: str) -> None:
    model, shape = network("dense", "relu", seed=8)
    x = images(shape)
    sampled = lipschitz(model, x, 0.1, "sampled")
    for method in UPPER:
        assert bool((sampled <= lipschitz(model, x, 0.1, method, bounds=bounds) * (1 + 1e-9)).all())
    assert bool(lipschitz(model, x, 0.1, "output-width", bounds=bounds).isfinite().all())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["0.weight", "0.bias", "2.weight", "4.weight", "4.bias"])
def test_numbers_that_are_not_finite_never_end_in_a_finite_bound(where: str, value: float) -> None:
    model, shape = network("dense", "relu", seed=9)
    network_ = trace(model, shape)  # before the damage, which the tracer's own check may refuse
    with torch.no_grad():
        model.get_parameter(where).view(-1)[0] = value
    x = images(shape)
    for method in ("jacobian", "interval-jacobian", "output-width"):
        assert bool((lipschitz(network_, x, 0.1, method) == torch.inf).all()), method


def test_a_norm_that_is_not_a_number_is_no_lower_bound() -> None:
    model, shape = network("dense", "relu", seed=9)
    network_ = trace(model, shape)
    with torch.no_grad():
        model.get_parameter("4.weight").fill_(torch.nan)
    assert bool((lipschitz(network_, images(shape), 0.1, "sampled") == -torch.inf).all())


def test_an_output_that_ignores_its_input_has_constant_zero() -> None:
    model, shape = dense(nn.ReLU)
    model = model.double()
    nn.init.zeros_(model[4].weight)
    for method in NOTIONS:
        assert lipschitz(model, images(shape), 0.1, method).tolist() == [0.0, 0.0, 0.0]


def test_sampling_repeats_with_its_seed_and_ascent_finds_more() -> None:
    model, shape = network("convolutional", "tanh", seed=10)
    x = images(shape)
    few, more = LipschitzSettings(samples=4, steps=0), LipschitzSettings(samples=4, steps=20)
    drawn = lipschitz(model, x, 0.2, "sampled", settings=few)
    assert torch.equal(drawn, lipschitz(model, x, 0.2, "sampled", settings=few, seed=0))
    climbed = lipschitz(model, x, 0.2, "sampled", settings=more)
    assert bool((climbed >= drawn).all())
    assert float(climbed.mean()) > 1.01 * float(drawn.mean())


def test_weights_and_training_mode_are_left_alone() -> None:
    model, shape = network("residual", "relu", seed=11)
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for method in NOTIONS:
        assert not lipschitz(model, images(shape), 0.1, method).requires_grad
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_single_precision_networks_take_double_precision_images() -> None:
    model, shape = dense(nn.ReLU)
    found = lipschitz(model, images(shape), 0.1)
    assert found.dtype == torch.float32
    assert bool((point_norms(model, images(shape).float()).amax(1) <= found * (1 + 1e-5)).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "jacobi"}, "Did you mean 'jacobian'"),
        ({"units": "pixels"}, "Did you mean 'pixel'"),
        ({"bounds": "crowns"}, "Did you mean 'crown'"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"eps": -0.1}, "eps must be a finite number"),
        ({"x": torch.zeros(2, 6, dtype=torch.uint8)}, "must be floats"),
    ],
)
def test_wrong_arguments_are_answered_with_what_to_do(arguments: dict[str, object], message: str) -> None:
    model, shape = network("dense", "relu")
    with pytest.raises(SettingsError, match=message):
        lipschitz(model, **{"x": images(shape), "eps": 0.1, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"samples": 0}, "samples >= 1"),
        ({"iterations": 0}, "iterations >= 1"),
        ({"branches": -1}, "branches >= 0"),
        ({"together": -1}, "together >= 0"),
        ({"together": 2.5}, "together must be a whole number, got 2.5"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_when_they_are_made(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LipschitzSettings(**values)


def test_a_network_for_other_inputs_is_refused() -> None:
    model, shape = network("dense", "relu")
    with pytest.raises(SettingsError, match="the network takes"):
        lipschitz(trace(model, shape), torch.zeros(1, 5, dtype=torch.float64), 0.1)


class Constant(nn.Module):
    """x - relu(x) + relu(-x) = 0, with a kink at `at`."""

    def __init__(self, at: Tensor) -> None:
        super().__init__()
        self.register_buffer("at", at)

    def forward(self, x: Tensor) -> Tensor:
        z = x - self.at
        return z - torch.relu(z) + torch.relu(-z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_a_kink_at_a_sampled_point_is_not_taken_for_a_slope(dtype: torch.dtype, eps: float) -> None:
    x = torch.tensor([[0.5, 0.3, 0.7]], dtype=dtype)
    box = Box.linf(x.double(), eps)
    for at in (box.centre[0], x[0].double()):
        model = Constant(at).to(dtype)
        found = lipschitz(model, x, eps, "sampled", per_output=True)
        assert bool((found >= 0).all())
        assert bool((found <= 1e-6).all())


def test_neurons_that_do_not_move_do_not_hide_the_slopes_of_others() -> None:
    """Pruned neurons lie at their kink everywhere."""
    model, shape = dense(nn.ReLU)
    model = model.double()
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        first.weight[:2] = 0
        first.bias[:2] = 0
    x = images(shape)
    found = lipschitz(model, x, 0.05, "sampled", per_output=True)
    assert bool((found >= point_norms(model, x) * (1 - 1e-9)).all())
    assert bool((found > 0).all())


@pytest.mark.parametrize("eps", [1e-5, 1e-7, 1e-9, 1e-12])
def test_the_output_width_of_a_single_precision_network_holds_for_small_radii(eps: float) -> None:
    model, shape = dense(nn.ReLU)
    model, x = model.float(), images(shape).float() * 0.5 + 0.25  # no pixel at an end of the range
    width = lipschitz(model, x, eps, "output-width", per_output=True)
    limit = lipschitz(model, x, 0.0, "output-width", per_output=True)
    assert width.dtype == torch.float32
    torch.testing.assert_close(width, limit, rtol=5e-3, atol=1e-4)


def test_lower_bounds_are_rounded_down_and_upper_bounds_up() -> None:
    model, shape = dense(nn.ReLU)
    model = model.float()
    exact = copy.deepcopy(model).double()
    x = images(shape).float()
    for method, sign in (("sampled", -1), ("output-width", 1)):
        single, double = (lipschitz(m, x, 0.1, method, per_output=True) for m in (model, exact))
        assert bool((sign * (single.double() - double) >= 0).all())
        torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-9)
