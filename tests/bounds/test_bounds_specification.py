"""Backward passes for specifications as branch and bound uses them: multipliers on neurons, recorded coefficients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bounds_cases import BASES, SMALL, points_in, random_box, small_cnn
from lipgraft.bounds import AlphaSettings, bound
from lipgraft.bounds.alpha_crown import LowerBound, alpha_crown
from lipgraft.bounds.ascent import optimise
from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.crown import Prepared, prepare, specification_bounds
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.margins import other_classes
from lipgraft.bounds.own_lines import Shift
from lipgraft.grafting import GraftedActivation
from lipgraft.network import evaluate, trace


def ready(activation: str, generator: torch.Generator, batch: int = 2) -> tuple[Prepared, Tensor]:
    """Bounds of the layers in float64, and a specification C (B, G, S, n)."""
    network = trace(small_cnn(activation, generator), SMALL).to(dtype=torch.float64)
    box = random_box(SMALL, batch, generator, 0.05)
    with torch.no_grad():
        prepared = prepare(network, box)
    return prepared, torch.randn(batch, 2, 3, 4, generator=generator, dtype=torch.float64)


def random_shifts(prepared: Prepared, C: Tensor, generator: torch.Generator) -> dict[int, Tensor]:
    acts = list(prepared.network.activations())
    return {i: torch.randn(*C.shape[:3], *act.shape, generator=generator, dtype=torch.float64) * 0.1 for i, act in acts}


def shifted_bounds(prepared: Prepared, C: Tensor, shifts: dict[int, Tensor]) -> Tensor:
    """Lower bounds of C f + sum of shift * z, one row per problem: (B, 1, 1)."""
    path = Layout.of(prepared.network, prepared.network.output).path
    flat = {i: shift.flatten(1) for i, shift in shifts.items()}
    everywhere = {i: Shift(torch.arange(s.shape[1]).expand_as(s), s) for i, s in flat.items()}
    relaxed = Relaxed(prepared.lines, prepared.intervals[path.root], everywhere)
    return Substitution(prepared.network, path, relaxed, None).lower_bound(Rows(C), C[..., 0] * 0, path.target)


@pytest.mark.parametrize("activation", [*BASES, "grafted relu", "grafted tanh"])
def test_shifts_add_a_linear_function_of_the_pre_activations(activation: str, generator: torch.Generator) -> None:
    """The bound is one of C f + sum of shift * z, at every point of the box."""
    prepared, C = ready(activation, generator)
    C = C[:, :1, :1]
    shifts = random_shifts(prepared, C, generator)
    lower = shifted_bounds(prepared, C, shifts)
    network = prepared.network
    for b in range(len(C)):
        values = evaluate(network, points_in(network, prepared.box[b : b + 1], generator, 300))
        total = torch.einsum("gsn,pn->pgs", C[b], values[network.output])
        for i, shift in shifts.items():
            z = values[network.nodes[i].inputs[0]].flatten(1)
            total = total + torch.einsum("gsk,pk->pgs", shift[b].flatten(2), z)
        assert (total.amin(0) - lower[b]).min() >= -1e-9
    zero = {i: torch.zeros_like(shift) for i, shift in shifts.items()}
    torch.testing.assert_close(shifted_bounds(prepared, C, zero), specification_bounds(prepared, C))


def test_the_bound_can_be_differentiated_by_the_shifts(generator: torch.Generator) -> None:
    prepared, C = ready("relu", generator)
    C = C[:, :1, :1]
    shifts = {i: s.requires_grad_() for i, s in random_shifts(prepared, C, generator).items()}
    with torch.enable_grad():
        total = shifted_bounds(prepared, C, shifts).sum()
        slopes = torch.autograd.grad(total, list(shifts.values()))
    step = random_shifts(prepared, C, generator)
    ends = []
    for size in (1e-6, -1e-6):
        moved = {i: s.detach() + size * step[i] for i, s in shifts.items()}
        ends.append(float(shifted_bounds(prepared, C, moved).sum()))
    along = sum(float((g * d).sum()) for g, d in zip(slopes, step.values(), strict=True))
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(along, rel=1e-5)


def test_recorded_coefficients_of_the_input_attain_the_bound_at_a_corner(generator: torch.Generator) -> None:
    """In an affine network the bound is exact, and attained where the recorded signs say."""
    model = small_cnn("grafted relu", generator)
    for module in model.modules():
        if isinstance(module, GraftedActivation):
            module.mask.fill_(True)
    network = trace(model, SMALL).to(dtype=torch.float64)
    box, C = random_box(SMALL, 2, generator, 0.1), torch.randn(2, 1, 3, 4, generator=generator, dtype=torch.float64)
    record: dict[int, Tensor] = {}
    with torch.no_grad():
        lower = specification_bounds(prepare(network, box), C, record=record)
    assert record.keys() == {0, *(i for i, _ in network.activations())}
    for i, act in network.activations():
        assert record[i].shape == (2, 1, 3, *act.shape)
    for b in range(2):
        for s in range(3):
            corner = torch.where(record[0][b, 0, s] > 0, box.lower[b], box.upper[b])
            y = evaluate(network, corner.unsqueeze(0))[network.output][0]
            torch.testing.assert_close(C[b, 0, s] @ y, lower[b, 0, s])


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "grafted relu", "grafted tanh"])
def test_the_lines_that_alpha_crown_finds_give_its_bounds_for_all_rows_together_and_apart(
    activation: str, generator: torch.Generator
) -> None:
    prepared, C = ready(activation, generator)
    bounds = NeuronBounds.of(Layout.of(prepared.network, prepared.network.output), prepared.intervals)
    function = LowerBound(bounds, torch.arange(len(C)), C.flatten(1, 2)[:, None])
    image_of_row = torch.arange(len(C)).repeat_interleave(C.shape[1] * C.shape[2])[:, None]
    with torch.no_grad():
        crown, _ = function.value(function.start(), function.no_splits())
        found = optimise(function, function.start(), function.no_splits(), AlphaSettings(iterations=5))
        again, _ = function.value(found.alpha, found.beta)
        best = alpha_crown(prepared, C, AlphaSettings(iterations=5))
        apart = [
            LowerBound(bounds, image, row[None, None, None]).value(alpha[None], beta[None])[0]
            for image, row, alpha, beta in zip(image_of_row, C.flatten(0, 2), found.alpha, found.beta, strict=True)
        ]
    torch.testing.assert_close(crown.view(C.shape[:3]), specification_bounds(prepared, C))
    torch.testing.assert_close(again, found.bound, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(best.flatten(), found.bound, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.cat(apart), found.bound, rtol=1e-9, atol=1e-9)
    assert bool(((found.alpha >= 0) & (found.alpha <= 1)).all())


def test_some_of_the_problems_have_the_bounds_they_have_among_all(generator: torch.Generator) -> None:
    prepared, C = ready("grafted tanh", generator, batch=4)
    everything = specification_bounds(prepared, C)
    torch.testing.assert_close(specification_bounds(prepared.at(slice(1, 3)), C[1:3]), everything[1:3])


def test_both_groups_of_a_specification_are_bounded_alike(generator: torch.Generator) -> None:
    prepared, C = ready("relu", generator)
    want = bound(prepared.network, prepared.box, "crown", C[:, 0])
    both = specification_bounds(prepared, torch.stack([C[:, 0], -C[:, 0]], 1))
    torch.testing.assert_close(both[:, 0], want.lower)
    torch.testing.assert_close(-both[:, 1], want.upper)


def test_margins_are_the_class_against_every_other() -> None:
    target, C = other_classes(torch.tensor([0, 2]), 3, torch.float32)
    assert target.tolist() == [[1, 2], [0, 1]]
    assert C.tolist() == [[[1, -1, 0], [1, 0, -1]], [[-1, 0, 1], [0, -1, 1]]]
