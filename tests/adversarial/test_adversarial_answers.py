"""The exact answers themselves: no point of a box contradicts them, and the worst one reaches them."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from families import Case, Closed, case, names, outputs

pytestmark = pytest.mark.xdist_group("families")  # their exact answers are kept, once for all these files


def logits(one: Case, points: Tensor) -> Tensor:
    """In double precision, of the same weights; points (..., d) -> (..., n)."""
    with torch.no_grad():
        out: Tensor = deepcopy(one.net.model).double()(points.reshape(-1, *one.net.shape))
    return out.reshape(*points.shape[:-1], -1)


def margin(outputs: Tensor, y: Tensor) -> Tensor:
    """(B, N, n) and (B,) -> (B, N)."""
    label = y[:, None, None].expand(-1, outputs.shape[1], 1)
    return (outputs.gather(2, label) - outputs.scatter(2, label, -torch.inf).amax(2, keepdim=True)).squeeze(2)


@pytest.mark.long
@pytest.mark.parametrize(("name", "number"), names())
def test_no_point_of_a_box_contradicts_the_answer(name: str, number: int) -> None:
    one = case(name, number)
    generator = torch.Generator().manual_seed(number)
    share = torch.rand(len(one.y), 200, one.lower.shape[1], generator=generator, dtype=torch.float64)
    share[:, ::2] = share[:, ::2].round()  # corners
    found = logits(one, torch.lerp(one.lower[:, None], one.upper[:, None], share))
    slack = 1e-6 * one.scale
    assert bool((margin(found, one.y).amin(1) >= one.margin - slack).all())
    low, high = outputs(name, number)
    assert bool((found.amin(1) >= low - slack).all())
    assert bool((found.amax(1) <= high + slack).all())


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("name", "number"), names(closed=True))
def test_the_worst_point_reaches_the_answer(name: str, number: int) -> None:
    one = case(name, number)
    assert isinstance(one.net.exact, Closed)
    points = one.net.exact.worst(one.lower, one.upper, one.y)
    assert bool(((points >= one.lower) & (points <= one.upper)).all())
    reached = margin(logits(one, points[:, None]), one.y)[:, 0]
    torch.testing.assert_close(reached, one.margin, atol=1e-6 * one.scale, rtol=0)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("name", "number"), names())
def test_questions_are_clear_and_half_of_them_have_a_counterexample(name: str, number: int) -> None:
    one = case(name, number)
    assert int((one.margin > 0).sum()) == int((one.margin < 0).sum()) == len(one.y) // 2
    assert bool((one.margin.abs() > 1e-4 * one.scale).all())
    radius = one.eps.double()[:, None]
    assert bool((one.lower >= one.x.double().flatten(1) - radius).all())
    assert bool((one.upper <= one.x.double().flatten(1) + radius).all())
