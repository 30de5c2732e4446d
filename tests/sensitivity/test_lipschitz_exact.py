"""Tiny networks, where every activation pattern of the box can be tried."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from lipgraft.box import Box
from lipgraft.grafting import GraftedActivation
from lipgraft.sensitivity import LipschitzSettings, lipschitz
from lipschitz_networks import images, network, point_norms

TO_THE_END = LipschitzSettings(branches=100_000)


def tiny(seed: int, slope: float = 0.0, *, grafted: bool = False) -> nn.Sequential:
    """Two inputs, 4 + 3 neurons, two outputs; weights large enough for kinks inside the box."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(2, 4), nn.LeakyReLU(slope), nn.Linear(4, 3), nn.LeakyReLU(slope), nn.Linear(3, 2)
        ).double()
        for linear in model[::2]:
            nn.init.normal_(linear.weight)
            nn.init.normal_(linear.bias, std=0.3)
        if grafted:
            model[1] = GraftedActivation(model[1], torch.tensor([True, False, False, True]), 0.4, 0.2).double()
            model[3] = GraftedActivation(model[3], torch.tensor([False, True, False]), -0.3, 0.1).double()
    return model


def by_brute_force(model: nn.Sequential, lower: Tensor, upper: Tensor) -> float:
    """The largest row norm over all sign patterns that a linear program finds in the box."""
    best = 0.0
    for pattern in itertools.product((False, True), repeat=7):
        signs = np.array(pattern)
        matrix, constant = np.eye(2), np.zeros(2)
        rows, limits = [], []
        start = 0
        for k in (0, 2):
            weight, bias = (p.detach().numpy() for p in (model[k].weight, model[k].bias))
            matrix, constant = weight @ matrix, weight @ constant + bias
            here = signs[start : start + len(bias)]
            start += len(bias)
            flip = np.where(here, -1.0, 1.0)
            rows.append(flip[:, None] * matrix)
            limits.append(-flip * constant)
            act = model[k + 1]
            if isinstance(act, GraftedActivation):
                slope = np.where(here, 1.0, act.base.negative_slope)
                slope = np.where(act.mask.numpy(), act.gamma.detach().numpy(), slope)
                shift = np.where(act.mask.numpy(), act.omega.detach().numpy(), 0.0)
            else:
                slope, shift = np.where(here, 1.0, act.negative_slope), np.zeros(len(bias))
            matrix, constant = slope[:, None] * matrix, slope * constant + shift
        found = linprog(
            np.zeros(2),
            np.concatenate(rows),
            np.concatenate(limits),
            bounds=torch.stack([lower, upper], 1).numpy(),
        )
        if found.status == 0:
            best = max(best, float(np.abs(model[4].weight.detach().numpy() @ matrix).sum(1).max()))
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("slope", "grafted"), [(0.0, False), (0.2, False), (0.0, True)])
def test_the_bound_is_never_below_brute_force_and_branching_to_the_end_equals_it(
    seed: int, slope: float, grafted: bool
) -> None:
    model = tiny(seed, slope, grafted=grafted)
    x, eps = images((2,), 1, seed), 0.4
    box = Box.linf(x, eps)
    exact = by_brute_force(model, box.lower[0], box.upper[0])
    plain = lipschitz(model, x, eps).item()
    ended = lipschitz(model, x, eps, settings=TO_THE_END).item()
    assert exact <= plain * (1 + 1e-9)
    assert ended == pytest.approx(exact, rel=1e-9)
    assert ended <= plain


def test_each_split_keeps_the_bound_sound_and_none_makes_it_worse() -> None:
    model = tiny(5)
    x, eps = images((2,), 1, 5), 0.4
    box = Box.linf(x, eps)
    exact = by_brute_force(model, box.lower[0], box.upper[0])
    bounds = [lipschitz(model, x, eps, settings=LipschitzSettings(branches=n)).item() for n in (0, 2, 8, 100_000)]
    assert bounds == sorted(bounds, reverse=True)
    assert exact <= bounds[-1] * (1 + 1e-9) < bounds[0]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_branching_is_sound_on_residual_and_on_smooth_networks(activation: str) -> None:
    model, shape = network("residual", activation, seed=3)
    x, eps = images(shape, 1), 0.2
    plain = lipschitz(model, x, eps)
    split = lipschitz(model, x, eps, settings=LipschitzSettings(branches=5))
    box = Box.linf(x, eps)
    share = torch.rand(200, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = point_norms(model, torch.lerp(box.lower, box.upper, share)).max()
    assert float(seen) <= split.item() * (1 + 1e-9)
    assert split.item() <= plain.item()
