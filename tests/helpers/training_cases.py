"""Small networks, a batch and a task, for tests of the parts of the loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lipgraft.grafting import apply
from lipgraft.training import TrainSettings
from lipgraft.training.objectives import objective_named
from lipgraft.training.prepare import completed, traced
from lipgraft.training.task import Batch, Task

EPS, SHAPE, COUNT, CLASSES = 0.1, (2, 4, 4), 6, 3
SETTINGS = TrainSettings(eps=EPS, attack_steps=3, trades_beta=2.0, slope=1.0, rs=1.0)


def network(activation: Callable[[], nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    model = nn.Sequential(
        nn.ZeroPad2d((0, 1, 1, 0)),
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(36, 8),
        activation(),
        nn.Linear(8, CLASSES),
    )
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model


def grafted(seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    masks = {"2": torch.rand(4, 3, 3, generator=generator) < 0.5, "5": torch.rand(8, generator=generator) < 0.5}
    model = apply(network(), masks, slope=0.3, intercept=0.2, input_shape=SHAPE)
    return model.requires_grad_()


class Residual(nn.Module):
    """Two branches, one of them the identity, and an average pooling in front."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.pool, self.conv, self.act1 = nn.AvgPool2d(2), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()
        self.act2, self.head = nn.ReLU(), nn.Linear(8, CLASSES, bias=False)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(x - 0.5)
        x = self.act2(x + self.conv(self.act1(x)))
        logits: Tensor = self.head(x.flatten(1))
        return logits


def with_batchnorm() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, CLASSES),
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model


def task_of(model: nn.Module, settings: TrainSettings = SETTINGS, seed: int = 1) -> Task:
    memory = {
        "delta": torch.rand(9, *SHAPE, generator=torch.Generator().manual_seed(3)) * 2 * EPS - EPS,
        "momentum": torch.randn(9, *SHAPE, generator=torch.Generator().manual_seed(4)) * 1e-3,
    }
    generator = torch.Generator().manual_seed(seed)
    graph = traced(model, settings, SHAPE)
    bounded = objective_named(settings.objective).bounds and graph is None
    normalised = completed(model, SHAPE) if bounded else None
    return Task(model.train(), settings, generator, graph, memory, normalised)


def batch_of() -> Batch:
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(COUNT, *SHAPE, generator=generator)
    y = torch.randint(0, CLASSES, (COUNT,), generator=generator)
    return Batch(x, y, torch.tensor([8, 0, 3, 1, 5, 4]))


def gradients(value: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters()), materialize_grads=True))


def assert_same(value: Tensor, expected: Tensor, model: nn.Module) -> None:
    torch.testing.assert_close(value, expected)
    for got, wanted in zip(gradients(value, model), gradients(expected, model), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
