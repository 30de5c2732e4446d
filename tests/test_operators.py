"""Activations and operators all the way: bounds hold, verdicts in both directions, through ONNX and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bounds_cases import BASES, assert_sound, randomise, reach
from lipgraft import grafting
from lipgraft.activations import Curve, LeakyReLU, ReLU, Sigmoid, Tanh
from lipgraft.activations.gelu import GELU
from lipgraft.activations.hardtanh import Hardtanh, ReLU6
from lipgraft.activations.silu import SiLU
from lipgraft.activations.softplus import Softplus
from lipgraft.bounds import METHODS, AlphaSettings, bound, interval_bounds
from lipgraft.box import Box
from lipgraft.errors import UnsupportedOperationError
from lipgraft.grafting.graph import weight_factor
from lipgraft.interop import OnnxRuntime, export_onnx, load_onnx
from lipgraft.network import Affine, evaluate, trace
from lipgraft.sensitivity import LipschitzSettings, lipschitz
from lipgraft.training.intervals import balls_of
from lipgraft.training.tangent import value_and_tangent
from lipgraft.verification import AttackSettings, Limits, VerifySettings, verify

IMAGE = (2, 6, 7)


class Upsampling(nn.Module):
    """Transposed convolutions between activations, with everything that they can have."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.act1 = nn.ReLU()
        self.up = nn.ConvTranspose2d(4, 4, (3, 2), stride=2, padding=(1, 0), output_padding=(1, 0), groups=2)
        self.norm = nn.BatchNorm2d(4)
        self.act2 = nn.ReLU()
        self.wide = nn.ConvTranspose2d(4, 2, 2, stride=(1, 3), dilation=(2, 1), bias=False)
        self.act3 = nn.ReLU()
        self.out = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act2(self.norm(self.up(self.act1(self.down(x)))))
        return self.out(self.act3(self.wide(x)).flatten(1))


class Pooling(nn.Module):
    """A max pooling behind an activation, one behind a convolution, and one whose result feeds two branches."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.conv1, self.act1, self.pool1 = nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), first
        self.conv2, self.pool2, self.act2 = nn.Conv2d(3, 3, 3, padding=1), second, nn.ReLU()
        self.out = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.act1(self.conv1(x)))
        x = self.act2(self.pool2(self.conv2(x) + x))
        return self.out(x.flatten(1))


class Moving(nn.Module):
    """Numbers that are transposed, cut, repeated and put side by side between activations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act1 = nn.Conv2d(7, 4, 3, padding=1), nn.ReLU()
        self.mix, self.act2 = nn.Conv2d(6, 4, 1), nn.ReLU()
        self.out = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x.permute(0, 3, 1, 2))
        z = self.act1(z)
        z = self.act2(self.mix(torch.cat([z, z[:, :2].flip(2)], 1)))
        return self.out(torch.cat([z.flatten(1), x.flatten(1)[:, ::5].repeat(1, 2)], 1))


POOLS: dict[str, tuple[nn.Module, nn.Module]] = {
    "2 x 2": (nn.MaxPool2d(2), nn.MaxPool2d(2)),
    "3 x 3, stride 2, padded": (nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1)),
    "overlapping": (nn.MaxPool2d((3, 2), 1), nn.MaxPool2d(2, (2, 1))),
    "with ceil": (nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d((1, 3), 2, ceil_mode=True)),
    "dilated": (nn.MaxPool2d(2, 1, dilation=2), nn.MaxPool2d(2, 1, padding=1, dilation=(1, 2))),
}


def _activation(name: str) -> nn.Module:
    act = BASES[name]
    layers = [nn.Conv2d(2, 3, 3, stride=2), act(), nn.Flatten(), nn.LazyLinear(8), act(), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transposed convolution": Upsampling,
    "moved numbers": Moving,
    **{f"max pool {name}": lambda pools=pools: Pooling(*pools) for name, pools in POOLS.items()},
    **{name: lambda name=name: _activation(name) for name in BASES},
}
SMOOTH = ("sigmoid", "tanh", "gelu", "gelu-tanh", "silu", "softplus")


def model_of(name: str, gain: float = 1.4) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    model = MODELS[name]().eval()
    with torch.no_grad():
        model(torch.zeros(1, *IMAGE))
    randomise(model, generator, gain)
    for module in model.modules():
        if isinstance(module, nn.ConvTranspose2d):
            module.weight.data = torch.randn(module.weight.shape, generator=generator) * 0.5
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(4, generator=generator)
            module.running_var = torch.rand(4, generator=generator) + 0.5
    return model


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_graph_computes_what_the_model_computes(name: str) -> None:
    model = model_of(name).double()
    x = torch.randn(20, *IMAGE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for expand in (True, False):
        network = trace(model, IMAGE, expand=expand)
        torch.testing.assert_close(evaluate(network, x)[network.output], model(x))


@pytest.mark.parametrize("name", [name for name in MODELS if name not in BASES])
def test_bounds_hold(name: str, generator: torch.Generator) -> None:
    network = trace(model_of(name), IMAGE).to(dtype=torch.float64)
    box = Box.linf(torch.rand(2, *IMAGE, generator=generator, dtype=torch.float64), 0.05)
    reached = reach(network, box, generator)
    for method in METHODS:
        bounds = bound(network, box, method, alpha=AlphaSettings(iterations=3), neurons="all")
        assert_sound(network, reached, bounds)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_some_images_are_verified_and_some_falsified(name: str, generator: torch.Generator) -> None:
    """Piecewise linear networks leave nothing open: branch and bound takes each of these operators."""
    model = model_of(name)
    with torch.no_grad():
        x = torch.rand(12, *IMAGE, generator=generator)
        last = model.out if hasattr(model, "out") else model[-1]
        last.bias -= model(x).mean(0)
        y = model(x).argmax(1)
    eps = torch.logspace(-3.5, -0.5, 12)
    verdicts = verify(
        model,
        x,
        y,
        eps,
        settings=VerifySettings(limits=Limits(timeout=60.0), attack=AttackSettings(steps=10, restarts=1)),
    )
    status = [verdict.status for verdict in verdicts]
    assert status[0] == "verified"
    assert status[-1] == "falsified"
    assert set(status) <= ({"verified", "falsified", "unknown"} if name in SMOOTH else {"verified", "falsified"})
    for verdict, image, label, radius in zip(verdicts, x, y, eps, strict=True):
        if verdict.status == "verified":
            noise = torch.rand(500, *IMAGE, generator=generator) * 2 - 1
            with torch.no_grad():
                assert bool((model((image + radius * noise).clamp(0, 1)).argmax(1) == label).all())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["transposed convolution", "max pool 2 x 2", "hardtanh", "relu6", "gelu", "softplus"])
def test_lipschitz_bounds_hold(name: str, generator: torch.Generator) -> None:
    model = model_of(name).double()
    x = torch.rand(2, *IMAGE, generator=generator, dtype=torch.float64)
    found = lipschitz(model, x, 0.03, "sampled")
    plain = lipschitz(model, x, 0.03, "jacobian")
    branched = lipschitz(model, x, 0.03, "jacobian", settings=LipschitzSettings(branches=4))
    assert bool((found <= branched + 1e-9).all())
    assert bool((branched <= plain + 1e-9).all())
    assert bool((plain <= lipschitz(model, x, 0.03, "interval-jacobian") + 1e-9).all())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("grafted", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_network_survives_onnx(name: str, grafted: bool, tmp_path: Path, generator: torch.Generator) -> None:
    model, path = model_of(name), tmp_path / "net.onnx"
    if grafted:
        nodes = [node for _, node in trace(model, IMAGE, expand=False).activations()]
        masks = {node.name: torch.rand(node.shape, generator=generator) < 0.5 for node in nodes}
        model = grafting.apply(model, masks, input_shape=IMAGE)
    export_onnx(model, path, IMAGE)
    again = load_onnx(path)
    x = torch.rand(10, *IMAGE, generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(OnnxRuntime(path)(x), model(x), rtol=1e-4, atol=1e-5)
    box = Box.linf(x[:2], 0.02)
    before, after = (bound(network, box, "ibp", dtype=torch.float64) for network in (model, again))
    torch.testing.assert_close(after.lower, before.lower, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(after.upper, before.upper, rtol=1e-3, atol=1e-3)


def test_a_transposed_convolution_sends_rows_back_by_its_transpose_and_knows_its_strongest_weights(
    generator: torch.Generator,
) -> None:
    network = trace(model_of("transposed convolution"), IMAGE).to(dtype=torch.float64)
    for name in ("norm", "up", "wide"):
        if name not in network.names:  # BatchNorm is folded where it can be
            continue
        node = network.nodes[network.names[name]]
        assert isinstance(node, Affine)
        shape = network.nodes[node.inputs[0]].shape
        size = torch.Size(shape).numel()
        matrix = node.linear(torch.eye(size, dtype=torch.float64).view(-1, *shape)).flatten(1).T
        rows = torch.randn(3, 2, *node.shape, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(node.transpose(rows, shape, {}).flatten(2), rows.flatten(2) @ matrix)
        worth = torch.rand(node.shape, generator=generator, dtype=torch.float64)
        strongest = (matrix.abs() * worth.flatten()[:, None]).amax(0)
        torch.testing.assert_close(node.strongest(worth, shape).flatten(), strongest)
        magnitude = node.magnitude().linear(torch.eye(size, dtype=torch.float64).view(-1, *shape)).flatten(1).T
        torch.testing.assert_close(magnitude, matrix.abs())


@pytest.mark.parametrize("name", MODELS)
def test_training_sees_the_same_intervals_and_the_same_derivatives(name: str, generator: torch.Generator) -> None:
    model = model_of(name).double()
    network = trace(model, IMAGE)
    box = Box.linf(torch.rand(2, *IMAGE, generator=generator, dtype=torch.float64), 0.05)
    intervals = interval_bounds(network, box)
    balls = balls_of(network, (box.centre, (box.upper - box.lower) / 2))
    for (centre, radius), (lower, upper) in zip(balls, intervals, strict=True):
        torch.testing.assert_close((centre - radius, centre + radius), (lower, upper))
    direction = torch.randn(2, *IMAGE, generator=generator, dtype=torch.float64)
    value, tangent = value_and_tangent(network, box.centre, direction)
    point = box.centre.requires_grad_()
    outputs = model(point)
    torch.testing.assert_close(value, outputs)
    for k, column in enumerate(tangent.T):
        (slope,) = torch.autograd.grad(outputs[:, k].sum(), point, retain_graph=True)
        torch.testing.assert_close(column, (slope * direction).flatten(1).sum(1))


def test_a_neuron_before_max_pooling_weighs_as_much_as_its_window() -> None:
    weight = torch.randn(3, 2 * 2 * 2, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    model[3].weight.data = weight
    network = trace(model, (2, 4, 4), expand=False)
    of_windows = weight.abs().amax(0).reshape(2, 2, 2)
    factor = weight_factor(network, "0")
    torch.testing.assert_close(factor, of_windows.repeat_interleave(2, 1).repeat_interleave(2, 2))


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_is_not_grafted_and_its_weights_count_as_one(name: str, generator: torch.Generator) -> None:
    model = model_of(f"max pool {name}")
    x = torch.rand(5, *IMAGE, generator=generator)
    scores = grafting.score(model, x, 0.05)
    assert list(scores.layers) == ["act1", "act2"]
    assert all(bool((layer.s_wi > 0).any()) for layer in scores.layers.values())
    masks = grafting.select(model, scores, "weighted-interval", 0.5)
    grafted = grafting.apply(model, masks, input_shape=IMAGE)
    network = trace(grafted, IMAGE).to(dtype=torch.float64)
    box = Box.linf(x[:2].double(), 0.05)
    assert_sound(network, reach(network, box, generator), bound(network, box))
    assert {node.name for _, node in network.activations() if not node.auxiliary} == {"act1", "act2"}


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], Curve]] = {
    "relu in place": (lambda z: F.relu(z, inplace=True), ReLU()),
    "leaky relu": (lambda z: F.leaky_relu(z, negative_slope=0.3), LeakyReLU(0.3)),
    "sigmoid method": (lambda z: z.sigmoid(), Sigmoid()),
    "tanh in place": (lambda z: torch.tanh_(z), Tanh()),
    "gelu": (lambda z: F.gelu(z), GELU()),
    "gelu by tanh": (lambda z: F.gelu(z, approximate="tanh"), GELU("tanh")),
    "silu": (lambda z: F.silu(z), SiLU()),
    "softplus": (lambda z: F.softplus(z, 3.0), Softplus(3.0)),
    "hardtanh": (lambda z: F.hardtanh(z, -2.0, max_val=0.5), Hardtanh(-2.0, 0.5)),
    "hardtanh in place": (lambda z: F.hardtanh_(z, -2.0, 0.5), Hardtanh(-2.0, 0.5)),
    "relu6": (lambda z: F.relu6(z), ReLU6()),
}


class Calling(nn.Module):
    """An activation that is a call and no module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 6), nn.Linear(6, 3), CALLS[name][0]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize("name", CALLS)
def test_an_activation_that_is_called_is_known_and_can_be_grafted(name: str, generator: torch.Generator) -> None:
    model = Calling(name).double()
    ((_, node),) = trace(model, (4,)).activations()
    assert node.curve == CALLS[name][1]
    mask = torch.tensor([True, False, True, False, False, True])
    grafted = grafting.apply(model, {node.name: mask}, slope=0.3, intercept=0.1, input_shape=(4,))
    x = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        z = model.first(x)
        h = torch.where(mask, 0.3 * z + 0.1, CALLS[name][0](z.clone()))
        torch.testing.assert_close(grafted(x), model.last(h))
    ((_, again),) = trace(grafted, (4,)).activations()
    assert again.curve == node.curve
    assert again.graft is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Softplus(beta=-1.0), "beta -1.0 is not positive"),
        (lambda: nn.Softplus(threshold=2.0), "threshold 2.0 is below 10"),
        (lambda: nn.LeakyReLU(1.5), "negative slope 1.5 is above 1"),
        (lambda: nn.MaxPool2d(2, return_indices=True), "indices"),
    ],
)
def test_parameters_out_of_range_are_refused_with_a_sentence(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=message):
        trace(nn.Sequential(make(), nn.Flatten()), IMAGE)
