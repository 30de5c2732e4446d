"""Images that take many rounds of branch and bound, some of them verified and some falsified."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipgraft.verification import VerifySettings

EPS = 0.12
SETTINGS = VerifySettings().changed(
    attack={"restarts": 0, "search_every": 0},
    optimise={"refine": "none", "iterations": 2},
    branch={"batch": 4, "iterations": 1},
)
"""Weak bounds and few subproblems at a time, so that there are many rounds between which images can move."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = ((6, 16), (16, 12), (12, 12))
    hidden = [layer for pair in sizes for layer in (nn.Linear(*pair), nn.ReLU())]
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(12, 3))
    for parameter in model.parameters():
        parameter.data *= 3
    return model


def images(count: int = 34) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 1, 2, 3, generator=torch.Generator().manual_seed(4))
    return x, network()(x).argmax(1)
