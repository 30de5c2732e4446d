"""`lipschitz` on networks built to break it: upper notions are not below the exact constant, `sampled` is not above."""

from __future__ import annotations

import pytest
from torch import Tensor

from families import Closed, case, names, outputs
from lipgraft.sensitivity import LipschitzSettings, lipschitz

pytestmark = pytest.mark.xdist_group("families")  # their exact answers are kept, once for all these files

SLACK = 1e-4  # of the constant: float32's rounding of sums that cancel
CLOSED = names(closed=True)


def ask(name: str, number: int, method: str, settings: LipschitzSettings | None = None) -> tuple[Tensor, Tensor]:
    """What `lipschitz` says of each output, and what is exact: (B, n) each."""
    one = case(name, number)
    net = one.net
    assert isinstance(net.exact, Closed)
    found = lipschitz(
        net.model, one.x, one.eps, method, low=net.low, high=net.high, per_output=True, settings=settings, batch=64
    )
    return found.double(), net.exact.norms(one.lower, one.upper)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("method", ["jacobian", "interval-jacobian"])
@pytest.mark.parametrize(("name", "number"), CLOSED)
def test_upper_notions_are_not_below_the_exact_constant(name: str, number: int, method: str) -> None:
    found, exact = ask(name, number, method)
    # A slope of 0 is a difference of equal numbers, up to rounding in double precision.
    assert bool((found >= exact * (1 - SLACK) - 1e-9 * case(name, number).scale).all())


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("name", "number"), CLOSED)
def test_the_sampled_constant_is_not_above_the_exact_one(name: str, number: int) -> None:
    found, exact = ask(name, number, "sampled", LipschitzSettings(samples=8, steps=4))
    assert bool((found <= exact * (1 + SLACK) + SLACK * case(name, number).scale).all())


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("name", "number"), CLOSED)
def test_the_output_width_is_not_below_the_exact_one(name: str, number: int) -> None:
    one = case(name, number)
    found, _ = ask(name, number, "output-width")
    low, high = outputs(name, number)
    wide = one.eps > 0
    exact = ((high - low) / (2 * one.eps.double())[:, None])[wide]
    slack = 1e-5 * one.scale / one.eps[wide].double()[:, None]
    assert bool((found[wide] >= exact - slack).all())
