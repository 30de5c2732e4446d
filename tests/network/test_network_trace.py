"""Tracing whole models: names, live parameters, registered modules, and leaving the model as it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.activations import Curve, LeakyReLU, ReLU, Sigmoid, Tanh, curve_of
from lipgraft.errors import UnsupportedOperationError
from lipgraft.network import (
    Activation,
    Builder,
    Conv,
    Graft,
    Linear,
    Network,
    Ref,
    Scale,
    activation_calls,
    evaluate,
    full_precision,
    lowers_module,
    trace,
    trace_fx,
)
from lipgraft.network.lowering.registry import MODULES


def run(network: Network, x: Tensor) -> Tensor:
    return evaluate(network, x)[network.output]


def points(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


class Block(nn.Module):
    """A residual block that uses one ReLU module twice, in place, as torchvision does."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    """Sequential, nested, functional and method style in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.fc1 = nn.Linear(4, 6)
        self.fc2 = nn.Linear(6, 3)
        for bn in (m for m in self.modules() if isinstance(m, nn.BatchNorm2d)):
            bn.running_mean.copy_(points(4))
            bn.running_var.copy_(points(4).abs() + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        x = F.relu(F.avg_pool2d(x, x.shape[2:]) - 0.1).view(x.size(0), -1)
        return self.fc2(self.fc1(x).sigmoid())


RESNET_NAMES = [
    "stem.2",
    "blocks_0_relu",
    "blocks_0_relu_1",
    "blocks_1_relu",
    "blocks_1_relu_1",
    "relu",
    "sigmoid",
]


def test_resnet_in_mixed_style_equals_its_graph_in_evaluation_mode() -> None:
    model = ResNet()
    network = trace(model, (2, 9, 9))
    x = points(4, 2, 9, 9)
    torch.testing.assert_close(run(network, x), model.eval()(x), rtol=1e-4, atol=1e-5)
    assert len(network.names) == len(network.nodes)


def test_activations_are_named_by_their_module_or_by_the_call_when_the_module_is_reused() -> None:
    network = trace(ResNet(), (2, 9, 9))
    assert [node.name for _, node in network.activations()] == RESNET_NAMES
    assert [name for name, _ in activation_calls(ResNet())] == RESNET_NAMES


def test_a_module_and_a_call_of_the_same_name_get_different_names() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu_1 = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu_1(F.relu(F.relu(x) - 1) - 1)

    names = [node.name for _, node in trace(Clash(), (3,)).activations()]
    assert names[-1] == "relu_1"
    assert len(set(names)) == 3
    assert names == [name for name, _ in activation_calls(Clash())]


def test_a_module_under_two_attributes_counts_as_reused() -> None:
    act = nn.Tanh()
    model = nn.Sequential(act, nn.Linear(3, 3), act)
    assert [node.name for _, node in trace(model, (3,)).activations()] == ["_0", "_0_1"]


def test_activation_calls_belong_to_a_graph_that_can_be_rewritten() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    ((name, call),) = activation_calls(model)
    traced = call.graph.owning_module
    assert traced is not None
    traced.set_submodule(name, nn.Tanh())
    x = points(5, 3)
    torch.testing.assert_close(traced(x), model[2](torch.tanh(model[0](x))))
    assert isinstance(model[1], nn.ReLU)


def test_weights_are_live_in_value_and_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    network = trace(model, (1, 4, 4))
    x = points(5, 1, 4, 4)
    for _ in range(2):  # twice: a graph traced once serves many optimiser steps
        model.zero_grad()
        run(network, x).square().sum().backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().sum().backward()
        torch.testing.assert_close(got, [p.grad for p in model.parameters()])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * points(*parameter.shape))
        torch.testing.assert_close(run(network, x), model(x))


class OwnParameters(nn.Module):
    """Parameters used without a layer, one of them with a batch axis of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(points(4, 3))
        self.scale = nn.Parameter(points(3))
        self.shift = nn.Parameter(points(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.matrix) * self.scale + self.shift


def test_parameters_used_without_a_layer_are_live_too() -> None:
    model = OwnParameters()
    network = trace(model, (4,))
    x = points(5, 4)
    for _ in range(2):
        model.zero_grad()
        run(network, x).square().sum().backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().sum().backward()
        torch.testing.assert_close(got, [p.grad for p in model.parameters()])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        torch.testing.assert_close(run(network, x), model(x))


def test_folded_batch_norm_is_a_detached_snapshot() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    x = points(4, 3)
    network, before = trace(model, (3,)), model(x)
    with torch.no_grad():
        model[1].weight.mul_(2)
    torch.testing.assert_close(run(network, x), before.detach())
    assert not run(network, x).requires_grad


def test_weight_norm_is_read_as_the_layer_it_parametrises() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), nn.ReLU())
    network = trace(model, (3,))
    assert isinstance(network.nodes[1], Linear)
    torch.testing.assert_close(run(network, points(4, 3)), model(points(4, 3)).detach())


def test_the_model_is_left_as_it_was() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.bn = nn.BatchNorm1d(2).eval()
            self.features: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.features = self.bn(self.fc(x))
            return self.features + torch.tensor([1.0, 2.0])

    model = Keeping().train()
    model.bn.eval()
    attributes = set(vars(model))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    trace(model, (2,))
    assert [m.training for m in (model, model.fc, model.bn)] == [True, True, False]
    assert set(vars(model)) == attributes
    assert model.features is None
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_flags_come_back_after_a_failure_too() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(1)).train()
    with pytest.raises(UnsupportedOperationError):
        trace(model, (3,))
    assert all(m.training for m in model.modules())


def test_trace_fx_reads_evaluation_mode_and_shares_the_parameters() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.fc(x), 0.9, training=self.training)

    model = Dropping().train()
    traced = trace_fx(model)
    assert traced.fc.weight is model.fc.weight
    torch.testing.assert_close(traced(points(2, 3)), model.fc(points(2, 3)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_model_keeps_its_dtype(dtype: torch.dtype) -> None:
    network = trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype), (3,))
    assert run(network, points(2, 3).to(dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.ReLU(), ReLU()),
        (nn.LeakyReLU(0.25), LeakyReLU(0.25)),
        (nn.Sigmoid(), Sigmoid()),
        (nn.Tanh(), Tanh()),
    ],
)
def test_the_curve_of_a_module_is_the_curve_of_its_node(module: nn.Module, expected: Curve) -> None:
    assert curve_of(module) == expected
    ((_, node),) = trace(nn.Sequential(module), (2,)).activations()
    assert node.curve == expected
    assert node.kind == expected.name


def test_the_curve_of_something_else_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"Softmax is not a known activation\. Known: ReLU"):
        curve_of(nn.Softmax())


class Lines(nn.Module):
    """Some neurons are lines; control flow in it that tracing could not follow shows that it is not looked into."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.gamma = nn.Parameter(points(*mask.shape))
        self.omega = nn.Parameter(points(*mask.shape) + 1)

    def forward(self, z: Tensor) -> Tensor:
        if z.dim() == 0:
            raise ValueError("a batch is needed")
        return torch.where(self.mask, self.gamma * z + self.omega, z.tanh())


def test_a_registered_module_is_lowered_by_its_handler_and_named_like_an_activation() -> None:
    @lowers_module(Lines, activation=True)
    def lower_lines(build: Builder, module: Lines, z: Ref) -> Ref:
        return build.activation(z, Tanh(), Graft(module.mask, module.gamma, module.omega))

    try:
        model = nn.Sequential(nn.Linear(3, 4), Lines(torch.tensor([True, False, True, False])), nn.Linear(4, 2))
        network = trace(model, (3,))
        node = network.nodes[network.names["1"]]
        assert isinstance(node, Activation)
        assert node.graft is not None
        assert node.graft.gamma is model[1].gamma
        torch.testing.assert_close(run(network, points(5, 3)), model(points(5, 3)))
        with pytest.raises(UnsupportedOperationError, match="mask, gamma and omega have shapes"):
            trace(nn.Sequential(Lines(torch.tensor([True]))), (4,))
    finally:
        del MODULES[Lines]


def test_moved_network_computes_the_same_in_double() -> None:
    model = ResNet()
    network = trace(model, (2, 9, 9)).to(dtype=torch.float64)
    x = points(3, 2, 9, 9)
    assert run(network, x.double()).dtype == torch.float64
    torch.testing.assert_close(run(network, x.double()).float(), model.eval()(x), rtol=1e-4, atol=1e-5)


def test_average_pooling_is_a_grouped_convolution_and_constants_are_scales() -> None:
    network = trace(ResNet(), (2, 9, 9))
    pool = network.nodes[network.names["avg_pool2d"]]
    assert isinstance(pool, Conv)
    assert pool.groups == 4
    assert isinstance(network.nodes[network.names["sub"]], Scale)


def test_a_model_is_read_in_full_precision_whatever_the_caller_runs_in() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    x = points(4, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network = trace(model, (64,))
        assert run(network, x).dtype == torch.bfloat16
        with full_precision():
            exact = run(network, x)
        assert torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(exact, model(x))
