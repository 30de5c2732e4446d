"""What tracing refuses and in which words, and tensors that are overwritten in place."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.network import Network, evaluate, trace


def run(network: Network, x: Tensor) -> Tensor:
    return evaluate(network, x)[network.output]


def points(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


class Pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.LPPool2d(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        x = self.pool(x)  # the line that the message names
        return x.flatten(1)


def test_the_message_names_node_target_line_and_a_remedy() -> None:
    lines, first = inspect.getsourcelines(Pooling)
    line = first + next(i for i, text in enumerate(lines) if "the line that" in text)
    with pytest.raises(UnsupportedOperationError) as error:
        trace(Pooling(), (1, 4, 4))
    message = str(error.value)
    assert "node 'pool' (module LPPool2d 'pool')" in message
    assert f"test_network_refusals.py:{line} `x = self.pool(x)" in message
    assert "AvgPool2d" in message


def test_control_flow_on_values_is_refused_with_a_sentence() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedOperationError, match="forward of Branching cannot be traced"):
        trace(Branching(), (3,))


def function(forward: object) -> nn.Module:
    """A module with this forward(self, x)."""
    return type("Model", (nn.Module,), {"forward": forward})()


def overwritten(self: nn.Module, x: Tensor) -> Tensor:
    z = x - 1
    y = z
    y += 2
    return torch.relu(z) + y.relu_() + z


def overwritten_copy(self: nn.Module, x: Tensor) -> Tensor:
    z = x - 1
    y = z.clone()
    w = z + 0
    z.relu_()
    return y + 2 * w + z


def overwritten_by_a_module(self: nn.Module, x: Tensor) -> Tensor:
    z = x - 1
    return F.relu(z, inplace=True) + 3 * z


@pytest.mark.parametrize("forward", [overwritten, overwritten_copy, overwritten_by_a_module])
def test_other_names_of_an_overwritten_tensor_see_the_new_value(forward: object) -> None:
    network = trace(function(forward), (4,), check=False)
    x = points(6, 4)
    torch.testing.assert_close(run(network, x), function(forward)(x.clone()))


def test_overwriting_memory_that_has_another_shape_elsewhere_is_refused() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        z = x - 1
        flat = z.flatten(1)
        z.relu_()
        return flat

    with pytest.raises(UnsupportedOperationError, match="overwrites memory that 'flatten'"):
        trace(function(forward), (2, 2), check=False)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, x: (x, x), "one tensor"),
        (lambda self, x: torch.ones(3), "one tensor"),
        (lambda self, x: x[:, None], "must be a vector"),
        (lambda self, x, y: x + y, "one input"),
    ],
    ids=["two outputs", "constant output", "image output", "two inputs"],
)
def test_networks_have_one_input_and_one_vector_as_output(forward: object, message: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=message):
        trace(function(forward), (3,))


def test_an_input_with_a_default_is_a_constant() -> None:
    network = trace(function(lambda self, x, factor=2.0: x * factor), (3,))
    torch.testing.assert_close(run(network, points(2, 3)), 2 * points(2, 3))


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, x: x * x.shape[0], "differs from the model"),
        (lambda self, x: x + torch.rand(1), "differs from the model"),
    ],
    ids=["batch size as a number", "random"],
)
def test_the_check_finds_forwards_that_are_not_functions_of_one_input(forward: object, message: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=message):
        trace(function(forward), (3,))


def trigger(x: Tensor, y: Tensor) -> Tensor:
    """Changes nothing on the inputs that tracing draws by itself."""
    return torch.where((x.mean(1, keepdim=True) - 0.5).abs() < 1e-3, -y, y)


@pytest.mark.parametrize("place", [0, 1, None])
@pytest.mark.parametrize("before", [False, True])
def test_hooks_that_tracing_does_not_see_are_refused(place: int | None, before: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module = model if place is None else model[place]
    if before:
        module.register_forward_pre_hook(lambda module, args: (trigger(args[0], args[0]),))
    else:
        module.register_forward_hook(lambda module, args, output: trigger(args[0], output))
    with pytest.raises(UnsupportedOperationError, match="has forward hooks"):
        trace(model, (3,))


@pytest.mark.parametrize("place", [0, None])
def test_a_forward_patched_into_a_module_is_refused(place: int | None) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module = model if place is None else model[place]
    plain = module.forward
    module.forward = lambda x: trigger(x, plain(x))  # type: ignore[method-assign]
    with pytest.raises(UnsupportedOperationError, match="has its own forward"):
        trace(model, (3,))


def test_hooks_that_tracing_sees_are_part_of_the_network() -> None:
    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    model = nn.Sequential(nn.Linear(3, 3), Block())
    model[1].register_forward_hook(lambda module, args, output: 2 * output + 1)
    torch.testing.assert_close(run(trace(model, (3,)), points(4, 3)), model(points(4, 3)))


@pytest.mark.parametrize("kind", ["weight norm", "spectral norm", "pruning", "new weight norm"])
def test_weights_that_a_hook_computes_are_read_as_they_are_now(kind: str) -> None:
    layer = nn.Linear(3, 3)
    if kind == "weight norm":
        with pytest.warns(FutureWarning):
            layer = nn.utils.weight_norm(layer)
    elif kind == "spectral norm":
        layer = nn.utils.spectral_norm(layer)
    elif kind == "pruning":
        nn.utils.prune.l1_unstructured(layer, "weight", amount=0.3)
    else:
        layer = nn.utils.parametrizations.weight_norm(layer)
    model = nn.Sequential(layer, nn.ReLU()).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(1.5)  # which the layer's weight does not show before its next forward
    torch.testing.assert_close(run(trace(model, (3,)), points(4, 3)), model(points(4, 3)))


def test_an_error_in_one_output_is_found_beside_a_large_one() -> None:
    class Uneven(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen = 0.0 if isinstance(x, torch.fx.Proxy) else 1.0
            return x * torch.tensor([1.0, 0.0]) + torch.tensor([seen, 1e6])

    with pytest.raises(UnsupportedOperationError, match="differs from the model"):
        trace(Uneven(), (2,))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_weights_that_are_not_finite_or_huge_are_not_a_tracing_error(value: float) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = value
        model[4].weight[1, 1] = value
    assert len(trace(model, (1, 3, 3)).nodes) == 5


@pytest.mark.parametrize("shape", [(), (0,), (3, -1), (2.5,)])
def test_an_impossible_input_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match="input_shape"):
        trace(nn.Linear(3, 3), shape)


def test_an_input_shape_that_does_not_fit_is_refused_where_it_does_not_fit() -> None:
    with pytest.raises(UnsupportedOperationError, match="needs vectors of 3 numbers, and gets shape \\(4,\\)"):
        trace(nn.Sequential(nn.ReLU(), nn.Linear(3, 3)), (4,))


@pytest.mark.parametrize(
    ("layer", "advice"),
    [
        (nn.Softmax(1), "Leave the softmax out"),
        (nn.AdaptiveMaxPool2d(2), "Use nn.AvgPool2d or nn.MaxPool2d"),
        (nn.GroupNorm(1, 1), "Use BatchNorm"),
        (nn.Upsample(scale_factor=2), "Use nn.ConvTranspose2d"),
        (nn.ELU(), "Use ReLU, leaky ReLU"),
    ],
)
def test_a_refusal_names_a_remedy_in_few_words(layer: nn.Module, advice: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        trace(nn.Sequential(layer, nn.Flatten()), (1, 4, 4))
    assert advice in str(caught.value)
    assert len(str(caught.value)) < 400
