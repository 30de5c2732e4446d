"""Boxes: around points, clipped to the valid range, sliced, refused when they make no sense."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipgraft.box import Box
from lipgraft.errors import SettingsError


@given(st.integers(0, 2**31 - 1), st.floats(0, 2), st.booleans())
def test_a_ball_holds_exactly_the_valid_points_within_eps(seed: int, eps: float, clipped: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(3, 2, 4, generator=generator, dtype=torch.float64)
    box = Box.linf(x, eps) if clipped else Box.linf(x, eps, low=None, high=None)
    lower, upper = x - eps, x + eps
    torch.testing.assert_close(box.lower, lower.clamp(min=0) if clipped else lower, rtol=0, atol=1e-15)
    torch.testing.assert_close(box.upper, upper.clamp(max=1) if clipped else upper, rtol=0, atol=1e-15)
    assert ((box.lower <= x) & (x <= box.upper)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.1, 2 / 255, 1e-9, 0.3])
def test_the_box_of_proofs_holds_the_real_ball_and_that_of_counterexamples_lies_in_it(
    dtype: torch.dtype, eps: float
) -> None:
    x = torch.rand(1, 200, generator=torch.Generator().manual_seed(0), dtype=dtype) * 4 - 2
    outer, inner = (make(x, eps, low=None, high=None) for make in (Box.linf, Box.inside))
    for k in range(x.shape[1]):
        below, above = Fraction(float(x[0, k])) - Fraction(eps), Fraction(float(x[0, k])) + Fraction(eps)
        assert Fraction(float(outer.lower[0, k])) <= below <= Fraction(float(inner.lower[0, k]))
        assert Fraction(float(inner.upper[0, k])) <= above <= Fraction(float(outer.upper[0, k]))
    assert bool((torch.nextafter(outer.lower, x) >= inner.lower).all())  # and neither is wider or narrower than need be
    assert bool((torch.nextafter(outer.upper, x) <= inner.upper).all())


def test_a_ball_without_radius_is_its_centre() -> None:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    for box in (Box.linf(x, 0.0), Box.inside(x, 0.0), Box.linf(x, 0.0).to(dtype=torch.float64)):
        assert torch.equal(box.lower, x.to(box.lower.dtype))
        assert torch.equal(box.upper, x.to(box.upper.dtype))


def test_a_coarser_type_rounds_outward() -> None:
    box = Box.linf(torch.rand(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0.01)
    coarse = box.to(dtype=torch.float32)
    assert bool(((coarse.lower.double() <= box.lower) & (coarse.upper.double() >= box.upper)).all())


def test_each_image_may_have_its_own_eps() -> None:
    x, eps = torch.full((3, 2, 2), 0.5), torch.tensor([0.0, 0.1, 0.25])
    box = Box.linf(x, eps)
    for b in range(3):
        alone = Box.linf(x[b : b + 1], float(eps[b]))
        assert torch.equal(box[b : b + 1].lower, alone.lower)
        assert torch.equal(box[b : b + 1].upper, alone.upper)
    assert torch.equal(box.lower[0], x[0])
    assert torch.equal(box.upper[0], x[0])


def test_the_range_may_be_open_on_one_side_or_not_the_unit_interval() -> None:
    x = torch.tensor([[-2.0, 0.0, 3.0]])
    one_sided = Box.linf(x, 1.0, low=-2.5, high=None)
    assert one_sided.lower.tolist() == [[-2.5, -1.0, 2.0]]
    assert one_sided.upper.tolist() == [[-1.0, 1.0, 4.0]]


@pytest.mark.parametrize("x", [[[-1e-3, 0.5]], [[0.5, 1.001]], [[200.0, 3.0]]])
def test_a_pixel_outside_the_valid_range_is_refused_and_not_moved_into_it(x: list[list[float]]) -> None:
    with pytest.raises(SettingsError, match=r"must lie in \[0.0, 1.0\].*scale the images, or pass their valid range"):
        Box.linf(torch.tensor(x), 0.1)
    Box.linf(torch.tensor(x), 0.1, low=-1.0, high=255.0)
    Box.linf(torch.tensor(x), 0.1, low=None, high=None)


def test_the_ends_of_the_range_are_compared_in_the_precision_of_the_images() -> None:
    x = torch.tensor([[0.7, 0.1]])  # float32: a little less than 0.7, a little more than 0.1
    assert len(Box.linf(x, 0.0, low=0.1, high=0.7)) == 1
    assert len(Box.linf(torch.tensor([[0.7]]), 0.0, low=0.7, high=None)) == 1


def test_integer_images_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"must be floats, got torch.uint8; lipgraft.data.images"):
        Box.linf(torch.zeros(2, 3, dtype=torch.uint8), 0.1)


@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf, torch.tensor([0.1, math.nan]), torch.tensor([0.1, -1.0])])
def test_a_radius_that_is_no_length_is_refused(eps: float | torch.Tensor) -> None:
    with pytest.raises(SettingsError, match="eps must be a finite number >= 0"):
        Box.linf(torch.rand(2, 3), eps)


@pytest.mark.parametrize("eps", [torch.ones(3), torch.ones(2, 1)])
def test_a_radius_of_the_wrong_shape_is_refused(eps: torch.Tensor) -> None:
    with pytest.raises(SettingsError, match="one number per image"):
        Box.linf(torch.rand(2, 3), eps)


def test_nan_inputs_and_inverted_or_unequal_ends_are_refused() -> None:
    with pytest.raises(SettingsError, match="no NaN"):
        Box.linf(torch.tensor([[0.1, math.nan]]), 0.1)
    with pytest.raises(SettingsError, match="lower <= upper"):
        Box(torch.ones(1, 2), torch.zeros(1, 2))
    with pytest.raises(SettingsError, match="one shape"):
        Box(torch.zeros(1, 2), torch.zeros(1, 3))


def test_boxes_are_sliced_moved_and_measured() -> None:
    box = Box(torch.zeros(4, 2), torch.tensor([[1.0, 3.0]]).expand(4, 2))
    assert len(box) == 4
    assert len(box[1:3]) == 2
    assert len(box[torch.tensor([0, 3, 3])]) == 3
    assert box.centre[0].tolist() == [0.5, 1.5]
    assert box.radius[0].tolist() == [0.5, 1.5]
    assert box.to(dtype=torch.float64).upper.dtype == torch.float64
