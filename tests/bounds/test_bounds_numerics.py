"""Numbers that are not numbers prove nothing; precision is the engine's own; interval bounds can be differentiated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from bounds_cases import BASES, random_box, randomise, with_activation
from lipgraft.bounds import METHODS, AlphaSettings, Bounds, bound, interval_bounds, proved
from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.network import evaluate, trace

FEW = AlphaSettings(iterations=2)
SHAPE = (1, 5, 5)
KINDS = ["relu", "v-shaped", "sigmoid", "tanh", "grafted relu", "grafted sigmoid"]
BAD = [math.nan, math.inf, -math.inf]


def small(activation: str, generator: torch.Generator, gain: float = 1.4) -> nn.Sequential:
    """conv, act, conv, act, flatten, linear, act, linear: named "0" to "7"."""
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, stride=2), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    changed = with_activation(model, activation, SHAPE, generator)
    assert isinstance(changed, nn.Sequential)
    randomise(changed, generator, gain)
    return changed


def assert_proves_nothing(bounds: Bounds, rows: slice = slice(None)) -> None:
    assert (bounds.lower[rows] == -math.inf).all()
    assert (bounds.upper[rows] == math.inf).all()
    assert not proved(bounds.lower[rows]).any()


# --- NaN and infinity ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_number_in_a_weight_or_bias_never_gives_a_finite_bound(
    method: str, activation: str, generator: torch.Generator
) -> None:
    model, box = small(activation, generator), random_box(SHAPE, 2, generator, 0.05, torch.float32)
    network = trace(model, SHAPE)  # follows the parameters
    for layer, tensor in itertools.product(("0", "5"), ("weight", "bias")):
        values = getattr(model.get_submodule(layer), tensor).data.view(-1)
        for bad in (math.nan, math.inf):
            before, values[1] = float(values[1]), bad
            assert_proves_nothing(bound(network, box, method, alpha=FEW))
            values[1] = before
    assert bound(network, box, method, alpha=FEW).lower.isfinite().all()


def test_a_module_with_nan_weights_can_be_traced_and_proves_nothing(generator: torch.Generator) -> None:
    model = small("relu", generator)
    model.get_submodule("2").weight.data.view(-1)[0] = math.nan
    assert_proves_nothing(bound(model, random_box(SHAPE, 2, generator, 0.05, torch.float32)))


@pytest.mark.parametrize("parameter", ["gamma", "omega"])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_number_in_a_grafted_line_never_gives_a_finite_bound(
    method: str, bad: float, parameter: str, generator: torch.Generator
) -> None:
    model = small("grafted tanh", generator)
    grafted = model.get_submodule("3")
    getattr(grafted, parameter).data[grafted.mask.nonzero(as_tuple=True)] = bad
    assert_proves_nothing(bound(model, random_box(SHAPE, 2, generator, 0.05, torch.float32), method, alpha=FEW))


@pytest.mark.parametrize("activation", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_an_infinite_box_gives_no_finite_bound_and_leaves_its_neighbours_alone(
    method: str, activation: str, generator: torch.Generator
) -> None:
    model, box = small(activation, generator), random_box(SHAPE, 3, generator, 0.05, torch.float32)
    expected = bound(model, box[2:], method, alpha=FEW)
    for lower, upper in ((-math.inf, math.inf), (0.0, math.inf)):
        ends = box.lower.clone(), box.upper.clone()
        ends[0][1, 0, 2, 2], ends[1][1, 0, 2, 2] = lower, upper
        got = bound(model, Box(*ends), method, alpha=FEW)
        assert_proves_nothing(got, slice(1, 2))
        torch.testing.assert_close(got.lower[2:], expected.lower, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.upper[2:], expected.upper, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "grafted relu"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("lower", "upper"), [(math.nan, 1.0), (math.nan, -1.0), (-1.0, math.nan), (1.0, math.nan), (math.nan, math.nan)]
)
def test_nan_in_a_given_layer_never_gives_a_finite_bound(
    lower: float, upper: float, method: str, activation: str, generator: torch.Generator
) -> None:
    """Of a neuron that is not grafted, since a grafted one needs no bounds."""
    model, box = small(activation, generator), random_box(SHAPE, 2, generator, 0.05, torch.float32)
    low, high = (end.clone() for end in bound(model, box, "ibp").layers["3"])
    free = ~getattr(model.get_submodule("3"), "mask", torch.zeros(low.shape[1:], dtype=torch.bool))
    low[:, free], high[:, free] = lower, upper
    assert_proves_nothing(bound(model, box, method, layers={"3": (low, high)}, alpha=FEW))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_number_in_a_specification_gives_no_finite_bound(
    method: str, bad: float, generator: torch.Generator
) -> None:
    C = torch.eye(3)
    C[0, 0] = bad
    got = bound(small("relu", generator), random_box(SHAPE, 1, generator, 0.05, torch.float32), method, C, alpha=FEW)
    assert_proves_nothing(Bounds(got.lower[:, :1], got.upper[:, :1], got.layers))


@pytest.mark.parametrize("activation", [*BASES, "grafted relu", "grafted tanh"])
@pytest.mark.parametrize("method", METHODS)
def test_weights_so_large_that_they_overflow_give_infinite_or_sound_bounds_and_never_nan(
    method: str, activation: str, generator: torch.Generator
) -> None:
    model, box = small(activation, generator), random_box(SHAPE, 2, generator, 0.05, torch.float32)
    for layer in ("0", "2", "5", "7"):
        model.get_submodule(layer).weight.data.mul_(1e15)
    truth = trace(model, SHAPE).to(dtype=torch.float64)
    got = bound(model, box, method, alpha=FEW)
    assert not got.lower.isnan().any()
    assert not got.upper.isnan().any()
    for low, high in got.layers.values():
        assert not low.isnan().any()
        assert not high.isnan().any()
    y = evaluate(truth, box.centre.double())[truth.output]
    assert (got.lower.double() <= y + 1e-5 * y.abs()).all()
    assert (y - 1e-5 * y.abs() <= got.upper.double()).all()
    if activation == "relu":
        assert_proves_nothing(got)


def test_proved_means_finite_and_positive() -> None:
    numbers = torch.tensor([1.0, 1e-30, 0.0, -1.0, math.inf, -math.inf, math.nan])
    assert proved(numbers).tolist() == [True, True, False, False, False, False, False]


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wide", ["model", "box"])
def test_a_model_and_a_box_of_two_precisions_meet_in_the_higher_one(
    method: str, wide: str, generator: torch.Generator
) -> None:
    model, box = small("relu", generator), random_box(SHAPE, 2, generator, 0.05, torch.float32)
    expected = bound(model, box, method, alpha=FEW, dtype=torch.float64)
    if wide == "model":
        model = model.double()
    got = bound(model, box if wide == "model" else box.to(dtype=torch.float64), method, alpha=FEW)
    assert got.lower.dtype == torch.float64
    torch.testing.assert_close(got.lower, expected.lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.upper, expected.upper, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.layers, expected.layers, rtol=1e-12, atol=1e-12)


def switches() -> list[object]:
    backends = torch.backends
    return [
        torch.get_float32_matmul_precision(),
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,
        backends.mkldnn.matmul.fp32_precision,
        backends.mkldnn.conv.fp32_precision,
        torch.is_autocast_enabled("cpu"),
    ]


@pytest.fixture
def sloppy() -> Iterator[None]:
    """A caller who lets float32 products be rounded wherever PyTorch can do it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("method", METHODS)
def test_the_callers_precision_is_not_used(
    method: str, generator: torch.Generator, request: pytest.FixtureRequest
) -> None:
    model, box = small("relu", generator), random_box(SHAPE, 2, generator, 0.05, torch.float32)
    expected, exact = bound(model, box, method, alpha=FEW), model(box.centre)
    request.getfixturevalue("sloppy")
    assert not torch.equal(model(box.centre).float(), exact), (
        "the caller's settings must matter for this test to say anything"
    )
    got = bound(model, box, method, alpha=FEW)
    assert got.lower.dtype == torch.float32
    assert torch.equal(got.lower, expected.lower)
    assert torch.equal(got.upper, expected.upper)
    for name, ends in expected.layers.items():
        assert torch.equal(got.layers[name][0], ends[0])
        assert torch.equal(got.layers[name][1], ends[1])


@pytest.mark.usefixtures("sloppy")
def test_the_callers_settings_come_back_even_after_an_error(generator: torch.Generator) -> None:
    model, box = small("relu", generator), random_box(SHAPE, 1, generator, 0.05, torch.float32)
    before = switches()
    bound(model, box, "crown")
    assert switches() == before
    with pytest.raises(SettingsError):
        bound(model, box, "crown", torch.zeros(2, 2))
    assert switches() == before


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [*BASES, "grafted relu", "grafted sigmoid"])
def test_gradients_of_interval_bounds_equal_finite_differences(activation: str, generator: torch.Generator) -> None:
    """Along random directions in the space of all parameters, lines of grafted neurons included."""
    model = small(activation, generator).double()
    network, box = trace(model, SHAPE), random_box(SHAPE, 2, generator, 0.05)
    parameters = list(model.parameters())
    intervals = interval_bounds(network, box)
    weights = [torch.randn(low.shape, generator=generator, dtype=torch.float64) for low, _ in intervals]

    def loss() -> Tensor:
        ends = interval_bounds(network, box)
        parts = [(w * low).sum() + (w.flip(0) * high).sum() for w, (low, high) in zip(weights, ends, strict=True)]
        return torch.stack(parts).sum()

    slopes = torch.autograd.grad(loss(), parameters)
    for _ in range(3):
        steps = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        values = []
        for size in (1e-6, -2e-6):
            with torch.no_grad():
                for p, step in zip(parameters, steps, strict=True):
                    p.add_(step, alpha=size)
                values.append(float(loss()))
        with torch.no_grad():
            for p, step in zip(parameters, steps, strict=True):
                p.add_(step, alpha=1e-6)
        along = sum(float((g * step).sum()) for g, step in zip(slopes, steps, strict=True))
        assert math.isclose((values[0] - values[1]) / 2e-6, along, rel_tol=1e-5, abs_tol=1e-5)


def test_interval_bounds_follow_the_parameters_and_bound_itself_keeps_no_graph(generator: torch.Generator) -> None:
    model, box = small("relu", generator), random_box(SHAPE, 1, generator, 0.05, torch.float32)
    network = trace(model, SHAPE)
    before = interval_bounds(network, box)[network.output][0].detach().clone()
    model.get_submodule("7").bias.data += 1.0
    after = interval_bounds(network, box)[network.output][0]
    torch.testing.assert_close(after.detach(), before + 1.0, rtol=1e-5, atol=1e-5)
    assert after.requires_grad
    for method in METHODS:
        assert not bound(model, box, method, alpha=FEW).lower.requires_grad
