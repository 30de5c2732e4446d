"""Networks, boxes and points for the tests of the bound engine, and the check that bounds hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipgraft import grafting, models
from lipgraft.bounds import Bounds
from lipgraft.box import Box
from lipgraft.grafting import GraftedActivation
from lipgraft.network import Network, evaluate, trace

BASES: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": lambda: nn.LeakyReLU(0.1),
    "v-shaped": lambda: nn.LeakyReLU(-0.5),
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "softplus": lambda: nn.Softplus(beta=2.0),
    "hardtanh": lambda: nn.Hardtanh(-0.5, 1.5),
    "relu6": nn.ReLU6,
}
REFERENCE = ("relu", "leaky-relu", "v-shaped", "sigmoid", "tanh")
"""Those that the dense reference implementation has lines for."""
ACTIVATIONS = [*BASES, *(f"grafted {base}" for base in REFERENCE)]


def randomise(model: nn.Module, generator: torch.Generator, gain: float = 1.0) -> nn.Module:
    """Normal weights of standard deviation gain / sqrt(fan in), small biases, random lines; in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_in = module.weight[0].numel()
            module.weight.data = torch.randn(module.weight.shape, generator=generator) * gain / fan_in**0.5
            if module.bias is not None:
                module.bias.data = torch.randn(module.bias.shape, generator=generator) * 0.2
        if isinstance(module, GraftedActivation):
            module.gamma.data = torch.randn(module.gamma.shape, generator=generator)
            module.omega.data = torch.randn(module.omega.shape, generator=generator)
    return model


def with_activation(model: nn.Module, name: str, input_shape: tuple[int, ...], generator: torch.Generator) -> nn.Module:
    """The model with every ReLU replaced by the named activation; half of the neurons grafted if it says so."""
    base = BASES[name.removeprefix("grafted ")]
    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(parent, key, base())
    if not name.startswith("grafted "):
        return model
    shapes = {node.name: node.shape for _, node in trace(model, input_shape).activations()}
    masks = {key: torch.rand(shape, generator=generator) < 0.5 for key, shape in shapes.items()}
    return grafting.apply(model, masks, input_shape=input_shape)


def classifier(name: str, activation: str, *, dataset: str = "digits", seed: int = 0) -> Network:
    """One of the paper's architectures with random weights that keep signals alive, as a graph in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = models.build(name, dataset, batchnorm=None if name != "conv-huge" else False)
    shape = model.spec.input_shape
    smooth = activation.endswith(("sigmoid", "tanh"))
    changed = with_activation(model, activation, shape, generator)
    return trace(randomise(changed, generator, 2.0 if smooth else 1.4), shape).to(dtype=torch.float64)


SMALL = (1, 6, 6)


def small_cnn(activation: str, generator: torch.Generator) -> nn.Sequential:
    """Two convolutions and two linear layers on SMALL images, in float32; the activations are "1", "3" and "6"."""
    layers = [
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
    ]
    model = nn.Sequential(*layers, nn.Linear(36, 10), nn.ReLU(), nn.Linear(10, 4))
    changed = with_activation(model, activation, SMALL, generator)
    assert isinstance(changed, nn.Sequential)
    randomise(changed, generator, 1.4)
    return changed


def random_box(
    shape: tuple[int, ...],
    batch: int,
    generator: torch.Generator,
    eps: float | Tensor,
    dtype: torch.dtype = torch.float64,
) -> Box:
    """Boxes around random images."""
    return Box.linf(torch.rand(batch, *shape, generator=generator, dtype=dtype), eps)


def points_in(network: Network, box: Box, generator: torch.Generator, count: int = 1000) -> Tensor:
    """Points of one box: random ones, corners, and the corners where a first-order attack ends. (N, *shape)."""
    lower, upper = box.lower, box.upper
    width, shape, dtype = upper - lower, lower.shape[1:], lower.dtype
    inside = lower + width * torch.rand(count, *shape, generator=generator, dtype=dtype)
    if lower.numel() <= 8:
        signs = torch.tensor(list(itertools.product((0.0, 1.0), repeat=lower.numel())), dtype=dtype).view(-1, *shape)
    else:
        signs = (torch.rand(count // 4, *shape, generator=generator) < 0.5).to(dtype)
    points = [inside, lower + width * signs, lower, upper, box.centre, _attacked(network, box)]
    # Rounding must not carry a point out of its box.
    return torch.minimum(torch.maximum(torch.cat(points), lower), upper)


def _attacked(network: Network, box: Box) -> Tensor:
    """For each output, the corners its gradient at the centre points to and away from."""
    x = box.centre.clone().requires_grad_()
    with torch.enable_grad():
        outputs = evaluate(network, x)[network.output][0]
        found = []
        for y in outputs:
            (slope,) = torch.autograd.grad(y, x, retain_graph=True, allow_unused=True)
            slope = torch.zeros_like(x) if slope is None else slope
            found += [torch.where(slope > 0, box.upper, box.lower), torch.where(slope > 0, box.lower, box.upper)]
    return torch.cat(found)


def slack(value: Tensor) -> float:
    """What rounding may cost on numbers of this size."""
    return (1e-9 if value.dtype == torch.float64 else 2e-5) * (1.0 + float(value.abs().max()))


@dataclass(frozen=True)
class Reached:
    """What many points of each box reach: by node, the least and greatest value, each (B, *shape); of outputs all."""

    least: list[Tensor]
    greatest: list[Tensor]
    outputs: list[Tensor]


@torch.no_grad()
def reach(network: Network, box: Box, generator: torch.Generator, count: int = 1000) -> Reached:
    """Evaluate the network on the points of each box."""
    least, greatest, outputs = [], [], []
    for b in range(len(box)):
        values = evaluate(network, points_in(network, box[b : b + 1], generator, count))
        least.append([v.amin(0) for v in values])
        greatest.append([v.amax(0) for v in values])
        outputs.append(values[network.output])
    pairs = [[torch.stack(node) for node in zip(*ends, strict=True)] for ends in (least, greatest)]
    return Reached(pairs[0], pairs[1], outputs)


def assert_sound(network: Network, reached: Reached, bounds: Bounds, C: Tensor | None = None) -> None:
    """Every output (or C f) and every pre-activation that was reached lies within finite bounds. C: (B, S, n)."""
    assert bounds.layers.keys() == {node.name for _, node in network.activations()}
    for b, y in enumerate(reached.outputs):
        y = y if C is None else y @ C[b].T
        assert_within((y.amin(0), y.amax(0)), (bounds.lower[b], bounds.upper[b]), "output")
    for _, node in network.activations():
        i = node.inputs[0]
        assert_within((reached.least[i], reached.greatest[i]), bounds.layers[node.name], node.name)


def assert_within(inner: tuple[Tensor, Tensor], outer: tuple[Tensor, Tensor], where: str) -> None:
    """inner lies in outer, which is finite, up to rounding."""
    (low, high), (lower, upper) = inner, outer
    assert lower.shape == low.shape
    assert lower.isfinite().all(), f"{where}: a lower bound is not finite"
    assert upper.isfinite().all(), f"{where}: an upper bound is not finite"
    assert float((low - lower).min()) >= -slack(low), f"{where}: a value is below its lower bound"
    assert float((upper - high).min()) >= -slack(high), f"{where}: a value is above its upper bound"


def assert_same(got: Bounds, want: Bounds, tolerance: float = 1e-8) -> None:
    """Outputs and layers agree."""
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close((got.lower, got.upper), (want.lower, want.upper), **close)
    torch.testing.assert_close(got.layers, want.layers, **close)


def assert_no_worse(got: Bounds, than: Bounds, slack: float = 1e-9) -> None:
    """Outputs and layers lie within those of the other bounds."""
    pairs = [((got.lower, got.upper), (than.lower, than.upper))]
    pairs += [(got.layers[name], ends) for name, ends in than.layers.items()]
    for (lower, upper), (lowest, highest) in pairs:
        assert (lower >= lowest - slack).all()
        assert (upper <= highest + slack).all()
