"""Images just beyond their border, and a search that is told of no counterexample: turns as short as can be, planes for
a single margin, and a pool that is too small must not lose a subproblem on the way, or such an image is "verified"."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import lipgraft as lg
from lipgraft.verification import VerifySettings, verify
from lipgraft.verification.branch_and_bound import focus, lifting, planes, search
from lipgraft.verification.branch_and_bound.focus import Focus

BEYOND = 1.0005
"""Times the radius at which an attack breaks an image."""


def network(kind: str, generator: torch.Generator) -> tuple[nn.Sequential, tuple[int, ...]]:
    if kind == "dense":
        sizes = (12, 16, 14)
        hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        model, shape = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(14, 4)), (1, 3, 4)
    else:
        convs = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2), nn.ReLU()]
        model, shape = nn.Sequential(*convs, nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), (1, 6, 6)
    for parameter in model.parameters():
        scale = 1.6 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.3
        parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    return model.eval(), shape


def borders(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The radius of each image at which an attack breaks it, infinite if none does: (B,)."""

    def broken(eps: Tensor) -> Tensor:
        return model(lg.attack(model, x, y, eps, method="pgd-wide", steps=30, restarts=3)).argmax(1) != y

    low, high = torch.zeros(len(x)), torch.full((len(x),), 0.5)
    ever = broken(high)
    for _ in range(9):
        middle = (low + high) / 2
        found = broken(middle)
        low, high = torch.where(found, low, middle), torch.where(found, middle, high)
    return torch.where(ever, high, torch.inf)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(16))
def test_no_image_beyond_its_border_is_verified_however_turns_and_memory_cut_the_search(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    model, shape = network(draw.choice(["dense", "conv"]), generator)
    x = torch.rand(8, *shape, generator=generator)
    y = model(x).argmax(1)
    border = borders(model, x, y)
    x, y, border = x[border < torch.inf], y[border < torch.inf], border[border < torch.inf]
    assert len(x) > 1
    begin, exclusive = Focus.__init__, draw.random() < 0.5

    def begun(self: Focus, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        self.exclusive = exclusive

    monkeypatch.setattr(Focus, "__init__", begun)
    monkeypatch.setattr(search, "confirmed", lambda *_: {})
    for room, name, values in (
        (planes, "FEW", [1, 2]),
        (focus, "TRIAL", [4, 16]),
        (focus, "TURN", [2, 4]),
        (focus, "LOOK", [1, 4]),
        (lifting, "MANY", [8]),
        (lifting, "REST", [2, 8]),
    ):
        monkeypatch.setattr(room, name, draw.choice(values))
    settings = VerifySettings().changed(
        attack={"restarts": 0, "search_every": 0},
        limits={
            "max_subproblems": draw.choice([100, 300]),
            "pool_gigabytes": draw.choice([None, 4e-6, 2e-5]),
            "spill_gigabytes": draw.choice([0.0, 1e-3, 1e-3]),
        },
        optimise={"iterations": draw.choice([0, 4, 20])},
        branch={
            "neuron_after": draw.choice([0, 4, 20]),
            "neuron_splits": draw.choice([0, 2, 8]),
            "plane_steps": draw.choice([0, 3, 8]),
            "batch": draw.choice([4, 16, 64]),
            "iterations": draw.choice([0, 1, 2]),
            "rule": draw.choice(["intercept", "filtered", "babsr"]),
        },
    )
    found = verify(model, x, y, BEYOND * border, settings=settings)
    assert not [verdict for verdict in found if verdict.status in ("verified", "error")]
