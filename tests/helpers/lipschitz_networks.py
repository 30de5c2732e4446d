"""Small networks with every operation and activation, for the tests of Lipschitz constants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lipgraft.grafting import apply
from lipgraft.models.layers import Normalise
from lipgraft.network import trace

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": lambda: nn.LeakyReLU(0.2),
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "softplus": lambda: nn.Softplus(beta=2.0),
    "hardtanh": lambda: nn.Hardtanh(-0.5, 1.5),
}


class Residual(nn.Module):
    """x + body(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def dense(act: Callable[[], nn.Module]) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(6, 12), act(), nn.Linear(12, 9), act(), nn.Linear(9, 3)), (6,)


def convolutional(act: Callable[[], nn.Module]) -> tuple[nn.Module, tuple[int, ...]]:
    """Normalisation with unequal scales, padding, stride, groups and pooling."""
    layers = [
        Normalise((0.4, 0.5), (0.2, 0.4)),
        nn.ZeroPad2d((1, 0, 0, 2)),
        nn.Conv2d(2, 4, 3, stride=2),
        act(),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        act(),
        nn.AvgPool2d(2, stride=1),
        nn.Flatten(),
    ]
    width = nn.Sequential(*layers)(torch.zeros(1, 2, 6, 7)).shape[1]
    return nn.Sequential(*layers, nn.Linear(width, 7), act(), nn.Linear(7, 3)), (2, 6, 7)


def residual(act: Callable[[], nn.Module]) -> tuple[nn.Module, tuple[int, ...]]:
    """Blocks of both kinds of layers; the first block starts at the input itself."""
    block = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), act(), nn.Conv2d(3, 2, 3, padding=1))
    small = nn.Sequential(nn.Linear(5, 5), act())
    return (
        nn.Sequential(Residual(block), act(), nn.Flatten(), nn.Linear(32, 5), Residual(small), nn.Linear(5, 3)),
        (2, 4, 4),
    )


SHAPES = {"dense": dense, "convolutional": convolutional, "residual": residual}


def network(kind: str, activation: str, seed: int = 0, *, grafted: bool = False) -> tuple[nn.Module, tuple[int, ...]]:
    """A network with random weights, in double precision. grafted: a random half of the neurons are random lines."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, shape = SHAPES[kind](ACTIVATIONS[activation])
        model = model.double().eval()
        if grafted:
            nodes = [node for _, node in trace(model, shape).activations()]
            model = apply(model, {node.name: torch.rand(node.shape) < 0.5 for node in nodes}, input_shape=shape)
            for name, parameter in model.named_parameters():
                if name.endswith((".gamma", ".omega")):
                    parameter.data.uniform_(-0.5, 1.0)
    return model, shape


def images(shape: tuple[int, ...], count: int = 3, seed: int = 0) -> Tensor:
    """Random numbers in [0, 1], some of them at its ends."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, *shape, generator=generator, dtype=torch.float64) * 1.2 - 0.1).clamp(0, 1)


def point_norms(model: nn.Module, x: Tensor) -> Tensor:
    """The l1 norm of every row of the Jacobian at x, by automatic differentiation of the module: (B, outputs)."""
    point = x.clone().requires_grad_()
    y = model(point)
    rows = [torch.autograd.grad(y[:, k].sum(), point, retain_graph=True)[0] for k in range(y.shape[1])]
    return torch.stack([row.abs().flatten(1).sum(1) for row in rows], 1)
