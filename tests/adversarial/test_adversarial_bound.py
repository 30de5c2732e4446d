"""`bound` on networks built to break it: every method's bounds hold the exact extremes, in both precisions."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from families import case, names, outputs
from lipgraft.bounds import METHODS, AlphaSettings, bound

pytestmark = pytest.mark.xdist_group("families")  # their exact answers are kept, once for all these files

FEW = AlphaSettings(iterations=3)
SLACK = {torch.float32: 1e-5, torch.float64: 1e-9}  # of the largest numbers in the network


@pytest.mark.long
@pytest.mark.parametrize("dtype", SLACK, ids=["float32", "float64"])
@pytest.mark.parametrize(("name", "number"), names())
def test_bounds_hold_the_exact_extremes(name: str, number: int, dtype: torch.dtype) -> None:
    one = case(name, number)
    model, slack = deepcopy(one.net.model).to(dtype), SLACK[dtype] * one.scale
    low, high = outputs(name, number)
    point = one.eps == 0
    for method in METHODS:
        found = bound(model, one.box, method, alpha=FEW)
        lower, upper = found.lower.double(), found.upper.double()
        assert bool((lower <= low + slack).all()), method
        assert bool((upper >= high - slack).all()), method
        # A box that is a point has no room for doubt.
        torch.testing.assert_close((lower[point], upper[point]), (low[point], high[point]), atol=10 * slack, rtol=0)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("name", "number"), names())
def test_bounds_of_margins_hold_the_exact_margin(name: str, number: int) -> None:
    one = case(name, number)
    classes = torch.eye(outputs(name, number)[0].shape[1])
    rows = classes[one.y][:, None] - classes[None]  # of the true class against each; against itself it is 0
    for method in METHODS:
        found = bound(one.net.model, one.box, method, rows, alpha=FEW).lower.scatter(1, one.y[:, None], torch.inf)
        assert bool((found.amin(1) <= one.margin + 1e-5 * one.scale).all()), method
