"""The parts of the Jacobian bound, each against what it stands for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipgraft.activations import ReLU, curve_of
from lipgraft.bounds.interval import Interval
from lipgraft.box import Box
from lipgraft.network import Network, trace
from lipgraft.sensitivity.chain_rule import walk_back
from lipgraft.sensitivity.cholesky import by_blocks, cholesky, subtract_square
from lipgraft.sensitivity.expansion import Expansion, expand, linear_norms
from lipgraft.sensitivity.interval_jacobian import interval_adjoints, one_hot_rows
from lipgraft.sensitivity.middle_network import Middle, effects, strongest
from lipgraft.sensitivity.quadratic import (
    Form,
    _largest,
    _largest_of_all,
    certificate,
    first_guess,
    log_gradient,
    quadratic_norms,
)
from lipgraft.sensitivity.sampled import jacobian_rows
from lipschitz_networks import ACTIVATIONS, SHAPES, images, network

PROBLEMS = 2


def random_ranges(net: Network, seed: int) -> dict[int, Interval]:
    """Derivatives anywhere in [-1, 1.5], about half of them known exactly."""
    generator = torch.Generator().manual_seed(seed)
    out: dict[int, Interval] = {}
    for i, node in net.activations():
        ends = torch.rand(2, PROBLEMS, *node.shape, generator=generator, dtype=torch.float64) * 2.5 - 1.0
        low, high = ends.amin(0), ends.amax(0)
        known = torch.rand(PROBLEMS, *node.shape, generator=generator) < 0.5
        out[i] = (low, torch.where(known, low, high))
    return out


def rows_for(net: Network, slopes: dict[int, Tensor], weight: Tensor) -> Tensor:
    """The Jacobian's rows with these derivatives: (PROBLEMS, K, n)."""
    rows = one_hot_rows(net, weight).expand(PROBLEMS, -1, -1)
    end = walk_back(net, rows, lambda n, g, shape: n.transpose(g, shape, {}), lambda i, n, g: g * slopes[i][:, None])
    assert end is not None
    return (end * weight).flatten(2)


def drawn(ranges: dict[int, Interval], generator: torch.Generator) -> dict[int, Tensor]:
    """Derivatives in their ranges, mostly at the ends, which is where the norm is largest."""
    out = {}
    for i, (low, high) in ranges.items():
        share = torch.rand(low.shape, generator=generator, dtype=torch.float64)
        out[i] = torch.lerp(low, high, (3 * share - 1).clamp(0, 1))
    return out


def problem(kind: str, seed: int, limit: int) -> tuple[Network, dict[int, Interval], Tensor, Middle, Expansion]:
    model, shape = network(kind, "relu", seed)
    net = trace(model, shape).to()
    ranges = random_ranges(net, seed)
    weight = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    rows = one_hot_rows(net, weight).expand(PROBLEMS, -1, -1)
    middle = Middle.of(net, ranges, strongest(effects(net, ranges, rows, weight), limit))
    return net, ranges, weight, middle, expand(middle, rows, weight)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("limit", [0, 5, 1000])
def test_all_bounds_hold_for_every_choice_of_derivatives(kind: str, limit: int) -> None:
    """Stronger than sampling inputs: the derivatives are chosen freely in their ranges."""
    net, ranges, weight, middle, expansion = problem(kind, 0, limit)
    bounds = [linear_norms(middle, expansion, weight)]
    if limit:
        bounds.append(quadratic_norms(expansion, 6))
        assert bool(bounds[-1].isfinite().all())
    adjoints = interval_adjoints(net, ranges, one_hot_rows(net, weight).expand(PROBLEMS, -1, -1))
    generator = torch.Generator().manual_seed(1)
    for _ in range(150):
        rows = rows_for(net, drawn(ranges, generator), weight)
        norms = rows.abs().sum(2)
        assert all(bool((norms <= bound * (1 + 1e-9)).all()) for bound in bounds)
        assert bool(((rows - expansion.rows).abs() <= expansion.spread + 1e-9).all())
        low, high = ((end * weight).flatten(2) for end in (adjoints.lower, adjoints.upper))
        assert bool(((low - 1e-9 <= rows) & (rows <= high + 1e-9)).all())


@pytest.mark.parametrize("kind", SHAPES)
def test_the_expansion_gives_the_row_of_any_derivatives(kind: str) -> None:
    """t = t_m + e V with e = (d - m) g, and g = g_m + e B."""
    net, ranges, weight, middle, expansion = problem(kind, 1, 1000)
    slopes = drawn(ranges, torch.Generator().manual_seed(2))
    e = torch.zeros_like(expansion.adjoints)
    adjoints: dict[int, Tensor] = {}

    def gate(i: int, node: object, g: Tensor) -> Tensor:
        adjoints[i] = g
        return g * slopes[i][:, None]

    rows = one_hot_rows(net, weight).expand(PROBLEMS, -1, -1)
    walk_back(net, rows, lambda n, g, shape: n.transpose(g, shape, {}), gate)
    for group in middle.groups:
        step = (slopes[group.position] - middle.centre[group.position])[:, None]
        real = (group.radius != 0)[:, None]
        e[:, :, group.span] = group.pick(step * adjoints[group.position]) * real
    for group in middle.groups:
        real = (group.radius != 0)[:, None]
        found = (expansion.adjoints + e @ expansion.B)[:, :, group.span]
        torch.testing.assert_close(found * real, group.pick(adjoints[group.position]) * real)
    torch.testing.assert_close(expansion.rows + e @ expansion.V, rows_for(net, slopes, weight))


def test_a_change_of_the_input_is_felt_as_the_rows_say() -> None:
    _, _, weight, middle, expansion = problem("convolutional", 2, 1000)
    change = torch.randn(PROBLEMS, 2, *weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    felt = middle.forward(change * weight)
    assert bool((expansion.radius == 0).any())  # padding, whose rows are left empty
    known = torch.where(expansion.radius[:, None] != 0, felt, 0.0)
    torch.testing.assert_close(change.flatten(2) @ expansion.V.mT, known)


def test_the_certificate_refuses_an_indefinite_matrix_and_has_the_right_gradient() -> None:
    *_, expansion = problem("dense", 3, 7)  # some neurons are not kept, so that every term is there
    form = Form.of(expansion)
    assert bool((form.extra > 0).any())
    one = Form(form.rows[:, :1], form.adjoints[:, :1], form.freedom, form.extra[:, :1], form.V, form.B, form.spans)
    logs = first_guess(one)
    inputs = one.rows.shape[2]
    assert bool((certificate(one, logs[:, :inputs].exp(), 1e-9 * logs[:, inputs:].exp()).norms == torch.inf).all())

    logs = (logs + 0.3).requires_grad_()
    w, s = logs[:, :inputs].exp(), logs[:, inputs:].exp()
    found = certificate(one, w, s)
    (expected,) = torch.autograd.grad(2 * found.norms.log().sum(), logs)
    torch.testing.assert_close(log_gradient(one, w, s, found), expected)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_largest_eigenvalue_is_that_of_what_is_taken_off_the_diagonal(kind: str) -> None:
    *_, expansion = problem(kind, 5, 1000)
    form = Form.of(expansion)
    logs = first_guess(form)
    w, s = logs[:, : form.rows.shape[2]].exp(), logs[:, form.rows.shape[2] :].exp()
    taken = (form.V / w[:, None]) @ form.V.mT + (form.B * (s * form.freedom)[:, None]) @ form.B.mT
    scaled = taken / (s[:, :, None] * s[:, None]).sqrt()
    found, exact = _largest_of_all(form, w, s), torch.linalg.eigvalsh(scaled)[:, -1]
    assert bool((found <= exact * (1 + 1e-9)).all())
    assert bool((found >= 0.9 * exact).all())


def test_power_steps_that_end_early_say_the_same_about_the_limit() -> None:
    root = torch.randn(6, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = _largest(lambda v: root @ (root.mT @ v), root[:, 0])
    ordered = whole.sort().values
    middle, least = float(ordered[2:4].mean()), float(ordered[0]) / 2
    for limit in (middle, least):
        calls: list[Tensor] = []
        early = _largest(lambda v, c=calls: (c.append(v), root @ (root.mT @ v))[1], root[:, 0], enough=limit)
        assert torch.equal(early > limit, whole > limit)
    assert len(calls) < 16  # all are above the least


@pytest.mark.parametrize("kind", SHAPES)
def test_more_iterations_never_give_a_worse_bound(kind: str) -> None:
    *_, expansion = problem(kind, 4, 1000)
    norms = [quadratic_norms(expansion, n) for n in (1, 3, 10)]
    assert bool((norms[1] <= norms[0]).all())
    assert bool((norms[2] <= norms[1]).all())
    assert float(norms[2].sum()) < float(norms[0].sum())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_range_of_a_derivative_holds_it_on_the_interval_and_is_reached(activation: str) -> None:
    curve = curve_of(ACTIVATIONS[activation]())
    ends = torch.randn(2, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    lb, ub = ends.amin(0), ends.amax(0)
    low, high = curve.derivative_range(lb, ub)
    inside = torch.lerp(lb, ub, torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None])
    seen = curve.derivative(inside)
    assert bool(((low <= seen + 1e-12) & (seen <= high + 1e-12)).all())
    torch.testing.assert_close(seen.amin(0), low, atol=2e-3, rtol=0)
    torch.testing.assert_close(seen.amax(0), high, atol=2e-3, rtol=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", SHAPES)
def test_rows_at_a_point_equal_automatic_differentiation(kind: str, activation: str) -> None:
    model, shape = network(kind, activation, 5, grafted=True)
    net = trace(model, shape).to()
    x = Box.linf(images(shape), 0.05).centre
    rows, _ = jacobian_rows(net, x, one_hot_rows(net, x), {})
    expected = torch.stack([torch.func.jacrev(lambda p: model(p[None])[0])(p) for p in x])
    torch.testing.assert_close(rows, expected.detach())


def test_at_the_kink_a_relu_has_every_slope_between_its_two() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    one = torch.ones(3, dtype=torch.float64)
    for lb, ub in ((zero, one), (-one, zero), (zero, zero), (-one, one)):
        low, high = ReLU().derivative_range(lb, ub)
        assert (low.tolist(), high.tolist()) == ([0.0] * 3, [1.0] * 3)


@pytest.mark.parametrize("block", [1, 3, 8, 11, 20])
def test_the_blocked_factor_is_the_cholesky_factor_and_knows_when_there_is_none(block: int) -> None:
    root = torch.randn(4, 11, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrices = root @ root.mT + 0.1 * torch.eye(11, dtype=torch.float64)
    matrices[2, 7, 7] = -1.0
    whole, blocks = cholesky(matrices), by_blocks(matrices, block)
    assert blocks.proved.tolist() == whole.proved.tolist() == [True, True, False, True]
    there = whole.proved
    torch.testing.assert_close(blocks.lower[there], torch.linalg.cholesky(matrices[there]))
    right = torch.randn(4, 11, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for factor in (whole, blocks):
        torch.testing.assert_close(matrices[there] @ factor.solve(right)[there], right[there])


@pytest.mark.parametrize("block", [1, 3, 8, 512])
def test_a_square_is_subtracted_wherever_a_factorisation_looks(block: int) -> None:
    generator = torch.Generator().manual_seed(0)
    whole, A = (torch.randn(2, 8, n, generator=generator, dtype=torch.float64) for n in (8, 5))
    H, expected = whole.clone(), whole - A @ A.mT
    subtract_square(H, A, block)
    torch.testing.assert_close(H.tril(), expected.tril())
