"""Two lines around every activation: they hold on every interval, for every parameter, and touch where promised."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bounds_cases import BASES
from lipgraft.activations import KINDS, Curve, LeakyReLU, Lines, ReLU, Sigmoid, Tanh, curve_of
from lipgraft.bounds.relaxations import family, relax, unstable
from lipgraft.network import Activation, Graft

CURVES = [pytest.param(curve_of(make()), id=name) for name, make in BASES.items()]
KINKED = [case for case in CURVES if case.values[0].splits_at_zero]
S_SHAPED = [Sigmoid(), Tanh()]
WIDTHS = [0.0, 1e-14, 1e-9, 1e-6, 9e-4, 1.1e-3, 0.01, 0.3, 1.0, 3.0, 20.0, 300.0, 2e4]
STARTS = st.floats(-1e4, 1e4) | st.floats(-6, 6) | st.floats(-1e-3, 1e-3) | st.just(0.0)
INTERVALS = st.tuples(STARTS, st.sampled_from(WIDTHS) | st.floats(0, 50), st.sampled_from(["right", "left", "around"]))
FRACTIONS = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)


def interval(place: tuple[float, float, str], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """(lb, ub), each (1, 1), from a start, a width and on which side of the start the interval lies."""
    start, width, side = place
    lower = {"right": start, "left": start - width, "around": start - width / 3}[side]
    lb = torch.tensor([[lower]], dtype=dtype)
    return lb, torch.maximum(lb, torch.tensor([[lower + width]], dtype=dtype))


def node(curve: Curve, graft: Graft | None = None, shape: tuple[int, ...] = (1,)) -> Activation:
    return Activation("act", (0,), shape, curve, graft)


def grid(lb: Tensor, ub: Tensor) -> Tensor:
    """Points of [lb, ub], dense everywhere and denser near the ends and near zero: (N, 1)."""
    even = torch.linspace(0, 1, 1001, dtype=lb.dtype)
    near = torch.logspace(-12, 0, 200, dtype=lb.dtype)
    width = ub - lb
    parts = [lb + width * even, lb + width * near, ub - width * near, near, -near, 12 * even, -12 * even]
    points = torch.cat(
        [part.flatten() for part in parts] + [lb.flatten(), ub.flatten(), torch.zeros(1, dtype=lb.dtype)]
    )
    return torch.minimum(torch.maximum(points, lb.flatten()), ub.flatten()).unsqueeze(1)


def values(lines: Lines, z: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper line at z (N, 1)."""
    low = lines.lower_slope * z + (0 if lines.lower_intercept is None else lines.lower_intercept)
    high = lines.upper_slope * z + (0 if lines.upper_intercept is None else lines.upper_intercept)
    return low, high


def free(act: Activation, low: float, high: float, dtype: torch.dtype) -> Tensor:
    """alpha (k, 1, 1) with these fractions."""
    count = len(act.curve.start(torch.zeros(1, 1), torch.ones(1, 1)))
    return torch.tensor([low, high], dtype=dtype)[:count].reshape(count, 1, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("curve", CURVES)
@settings(max_examples=30)
@given(place=INTERVALS, low=FRACTIONS, high=FRACTIONS)
@example(place=(-1e4, 2e4, "right"), low=1.0, high=0.0)
@example(place=(-300.0, 600.0, "right"), low=1.0, high=0.0)
@example(place=(-1e4, 2e4, "right"), low=0.9, high=0.001)
@example(place=(0.0, 1e4, "right"), low=1.0, high=0.0)
@example(place=(10.0, 0.0009, "around"), low=0.0, high=0.0)  # across the small step of PyTorch's softplus
def test_the_lines_hold_for_every_alpha_on_every_interval(
    curve: Curve, dtype: torch.dtype, place: tuple[float, float, str], low: float, high: float
) -> None:
    act = node(curve)
    lb, ub = interval(place, dtype)
    lines = family(act, lb, ub)(free(act, low, high, dtype))
    z = grid(lb, ub)
    # The lines' own numbers are taken as exact: they are evaluated in float64, so that only their choice is on trial.
    below, above = values(Lines(*(None if t is None else t.double() for t in vars(lines).values())), z.double())
    h = curve(z.double())
    unit = torch.finfo(dtype).eps
    steepest = torch.maximum(lines.lower_slope.abs(), lines.upper_slope.abs()).double()
    tolerance = 8 * unit * (1 + h.abs().max() + (steepest * z).abs().max())
    assert (h - below >= -tolerance).all()
    assert (above - h >= -tolerance).all()


@pytest.mark.parametrize("curve", CURVES)
@settings(max_examples=30)
@given(place=INTERVALS)
def test_the_lines_that_crown_starts_from_are_sound_and_have_parameters_in_the_unit_interval(
    curve: Curve, place: tuple[float, float, str]
) -> None:
    act = node(curve)
    lb, ub = interval(place)
    start = curve.start(lb, ub)
    assert start.shape[1:] == lb.shape
    assert ((start >= 0) & (start <= 1)).all()
    given_start, default = family(act, lb, ub)(start), relax(act, lb, ub)
    assert torch.equal(given_start.lower_slope, default.lower_slope)
    assert torch.equal(given_start.upper_slope, default.upper_slope)
    below, above = values(default, grid(lb, ub))
    h = curve(grid(lb, ub))
    assert (h - below).min() >= -1e-11 * (1 + h.abs().max())
    assert (above - h).min() >= -1e-11 * (1 + h.abs().max())


@pytest.mark.parametrize("curve", KINKED)
@settings(max_examples=30)
@given(place=INTERVALS, low=FRACTIONS)
def test_a_kinked_activation_has_its_chord_above_and_a_line_through_the_kink_below(
    curve: Curve, place: tuple[float, float, str], low: float
) -> None:
    act = node(curve)
    lb, ub = interval(place)
    lines = family(act, lb, ub)(free(act, low, 0.0, torch.float64))
    ends = torch.cat([lb, ub])
    below, above = values(lines, ends)
    torch.testing.assert_close(above, curve(ends), rtol=1e-9, atol=1e-9)
    if curve.exact(lb, ub):  # stable: both lines are the function
        torch.testing.assert_close(below, curve(ends), rtol=1e-9, atol=1e-9)
    else:
        assert values(lines, torch.zeros(1, 1, dtype=torch.float64))[0].item() == 0.0
        assert curve.slopes[0] - 1e-12 <= lines.lower_slope.item() <= 1.0


@pytest.mark.parametrize("curve", S_SHAPED)
@settings(max_examples=30)
@given(place=INTERVALS, low=FRACTIONS, high=FRACTIONS)
def test_the_lines_of_an_s_shaped_activation_touch_it(
    curve: Curve, place: tuple[float, float, str], low: float, high: float
) -> None:
    """Somewhere in the interval; on a narrow interval, as closely as its curvature needs."""
    act = node(curve)
    lb, ub = interval(place)
    z = grid(lb, ub)
    below, above = values(family(act, lb, ub)(free(act, low, high, torch.float64)), z)
    h, width = curve(z), float(ub - lb)
    step = min(width, 24.0) / 1000  # a tangent may touch between two points of the grid
    slack = 0.8 * step**2 + (0.8 * width**2 if width < 1e-3 else 0.0) + 1e-9
    assert (h - below).min() <= slack
    assert (above - h).min() <= slack


@pytest.mark.parametrize("curve", S_SHAPED)
@settings(max_examples=30)
@given(lower=st.floats(-50, -2e-3), upper=st.floats(2e-3, 50))
def test_crown_takes_lines_through_the_ends_of_an_interval_that_holds_zero(
    curve: Curve, lower: float, upper: float
) -> None:
    """The upper line meets the curve at lb, the lower line at ub: no line through that end is tighter."""
    act = node(curve)
    ends = torch.tensor([[lower], [upper]], dtype=torch.float64)
    below, above = values(relax(act, ends[:1], ends[1:]), ends)
    h = curve(ends)
    assert math.isclose(above[0], h[0], abs_tol=1e-9)
    assert math.isclose(below[1], h[1], abs_tol=1e-9)


@pytest.mark.parametrize("curve", CURVES)
@settings(max_examples=30)
@given(place=INTERVALS, gamma=st.floats(-3, 3), omega=st.floats(-3, 3), low=FRACTIONS, high=FRACTIONS)
def test_a_grafted_neuron_is_its_own_line_and_its_neighbour_is_untouched(
    curve: Curve, place: tuple[float, float, str], gamma: float, omega: float, low: float, high: float
) -> None:
    lb, ub = (end.expand(1, 2) for end in interval(place))
    line = [torch.full((2,), v, dtype=torch.float64) for v in (gamma, omega)]
    grafted = node(curve, Graft(torch.tensor([True, False]), line[0], line[1]), (2,))
    alpha = free(grafted, low, high, torch.float64).expand(-1, 1, 2)
    got, plain = family(grafted, lb, ub)(alpha), family(node(curve, shape=(2,)), lb, ub)(alpha)
    for parts, want in (
        (got.lower_slope, gamma),
        (got.upper_slope, gamma),
        (got.lower_intercept, omega),
        (got.upper_intercept, omega),
    ):
        assert parts is not None
        assert parts[0, 0].item() == want
    for z in (lb, ub):
        for mine, other in zip(values(got, z), values(plain, z), strict=True):
            assert mine[0, 1] == other[0, 1]
    assert not unstable(grafted, lb, ub)[0, 0]
    assert unstable(grafted, lb, ub)[0, 1] == unstable(node(curve, shape=(2,)), lb, ub)[0, 1]


@pytest.mark.parametrize("grafted", [False, True])
@pytest.mark.parametrize("curve", CURVES)
@settings(max_examples=30)
@given(place=INTERVALS, gamma=st.floats(-3, 3))
def test_the_image_of_an_interval_is_exact(
    curve: Curve, grafted: bool, place: tuple[float, float, str], gamma: float
) -> None:
    graft = Graft(
        torch.tensor([True]), torch.tensor([gamma], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    )
    act = node(curve, graft if grafted else None)
    lb, ub = interval(place)
    low, high = act.interval((lb, ub))
    turns = torch.tensor([[turn] for turn in getattr(curve, "turns", ())], dtype=torch.float64).reshape(-1, 1)
    z = torch.cat([grid(lb, ub), turns[(turns > lb) & (turns < ub)].unsqueeze(1)])
    h = gamma * z + 0.5 if grafted else curve(z)
    torch.testing.assert_close(low.flatten(), h.amin(0), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(high.flatten(), h.amax(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("lower", "upper"), [(math.nan, 1.0), (-1.0, math.nan), (math.nan, math.nan)])
def test_nan_counts_as_unstable(curve: Curve, lower: float, upper: float) -> None:
    assert unstable(node(curve), torch.tensor([[lower]]), torch.tensor([[upper]])).all()


@pytest.mark.parametrize(
    ("curve", "lower", "upper", "expected"),
    [
        (ReLU(), -1.0, 1.0, True),
        (ReLU(), 0.0, 1.0, False),
        (ReLU(), -1.0, 0.0, False),
        (LeakyReLU(0.1), -1e-9, 1e-9, True),
        (Sigmoid(), 1.0, 2.0, True),
        (Tanh(), 0.5, 0.5, False),
    ],
)
def test_a_neuron_is_unstable_where_the_activation_is_no_line(
    curve: Curve, lower: float, upper: float, expected: bool
) -> None:
    assert unstable(node(curve), torch.tensor([[lower]]), torch.tensor([[upper]])).item() is expected


def test_every_activation_of_the_registry_is_tested_here() -> None:
    assert {case.values[0].name for case in CURVES} == {kind.name for kind in KINDS}


@pytest.mark.parametrize("curve", S_SHAPED)
@given(INTERVALS, st.floats(0, 1), st.floats(0, 1), FRACTIONS, FRACTIONS)
@settings(max_examples=60, deadline=None)
def test_the_anchors_of_a_wider_interval_give_lines_that_hold(curve, place, begin, end, low, high):
    lb, ub = interval(place)
    inner = torch.sort(torch.stack([lb + begin * (ub - lb), lb + end * (ub - lb)]).clamp(lb, ub), 0).values
    act = node(curve)
    lines = family(act, *inner, anchors=curve.anchors(lb, ub))(free(act, low, high, torch.float64))
    z = grid(*inner)
    below, above = values(lines, z)
    room = 1e-12 * (1 + z.abs().max())
    assert bool((below <= curve(z) + room).all())
    assert bool((curve(z) <= above + room).all())


@pytest.mark.parametrize("curve", S_SHAPED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tangent_points_of_the_table_hold_the_curve_and_are_close_to_the_smallest(curve, dtype):
    end = torch.cat([torch.logspace(-9, 3, 20001), torch.tensor([0.0, 63.99, 64.0, torch.inf])]).to(dtype)
    first, last = curve.anchors(-end, end, quick=True)
    assert torch.equal(first, -last)
    lb, t = -end.double(), first.double()
    room = 1e-12 if dtype == torch.float64 else 1e-6
    finite = torch.isfinite(end)
    assert bool((curve(t) + curve.derivative(t) * (lb - t) >= curve(lb) - room)[finite].all())
    assert bool((t <= end).all())
    exact, _ = curve.anchors(lb, -lb)
    inside = (end < 64) & (end > 1e-3)  # nearer than that an interval is held by its middle's tangent
    assert bool((t <= exact * 1.005 + 1e-6)[inside].all())
    assert bool(curve.anchors(torch.tensor([torch.nan]), torch.tensor([torch.nan]), quick=True).isnan().all())
