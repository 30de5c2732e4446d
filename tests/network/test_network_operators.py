"""Every supported operation, alone and inside a network, against the module it was traced from."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network import Add, Conv, Linear, Network, Pad, Scale, evaluate, trace

IMAGE = (4, 6, 6)

# PyTorch's own remark about such models.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")


class Wrapped(nn.Module):
    """A function between two layers, so that its input is neither the network's input nor only positive."""

    def __init__(self, function: Callable[[Tensor], Tensor], shape: tuple[int, ...], alone: bool) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("dtype_of_the_model", torch.zeros(1))
        image = len(shape) == 3
        before = nn.Conv2d(shape[0], shape[0], 3, padding=1) if image else nn.Linear(shape[0], shape[0])
        self.before = nn.Identity() if alone else before
        self.after = nn.Identity() if alone else nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x))).flatten(1)


def randomise(model: nn.Module) -> nn.Module:
    """Parameters and running statistics that differ from channel to channel, in double precision."""
    model = model.double()
    with torch.no_grad():
        for i, (name, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
            if tensor.is_floating_point():
                generator = torch.Generator().manual_seed(i)
                noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.copy_(noise.abs() + 0.5 if "var" in name else noise * 0.5)
    return model


def assert_same(network: Network, model: nn.Module, count: int = 5) -> None:
    x = torch.randn(count, *network.input_shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    values = evaluate(network, x)
    for node, value in zip(network.nodes, values, strict=True):
        assert value.shape == (count, *node.shape)
    torch.testing.assert_close(values[network.output], model(x.clone()), rtol=1e-9, atol=1e-9)


MODULES = {
    "conv": nn.Conv2d(4, 3, 3),
    "conv stride and padding": nn.Conv2d(4, 3, 3, stride=2, padding=1),
    "conv uneven arguments": nn.Conv2d(4, 3, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
    "conv groups without bias": nn.Conv2d(4, 8, 3, groups=2, bias=False),
    "conv same, odd kernel": nn.Conv2d(4, 3, 3, padding="same"),
    "conv same, even kernel": nn.Conv2d(4, 3, (4, 2), padding="same"),
    "conv same, dilated": nn.Conv2d(4, 3, (2, 3), padding="same", dilation=(3, 2)),
    "conv valid": nn.Conv2d(4, 3, 3, padding="valid"),
    "batch norm": nn.BatchNorm2d(4),
    "batch norm without weights": nn.BatchNorm2d(4, affine=False),
    "zero pad": nn.ZeroPad2d((1, 0, 2, 3)),
    "constant pad of zero": nn.ConstantPad2d(1, 0.0),
    "average pool": nn.AvgPool2d(2),
    "average pool, overlapping": nn.AvgPool2d(3, stride=2, padding=1),
    "average pool, padding not counted": nn.AvgPool2d((3, 2), stride=1, padding=1, count_include_pad=False),
    "average pool, own divisor": nn.AvgPool2d(2, divisor_override=3),
    "average pool, ceil without effect": nn.AvgPool2d(2, ceil_mode=True),
    "adaptive average pool": nn.AdaptiveAvgPool2d((1, 1)),
    "adaptive average pool, divisible": nn.AdaptiveAvgPool2d((3, None)),
    "flatten": nn.Flatten(),
    "unflatten": nn.Unflatten(1, (2, 2)),
    "identity": nn.Identity(),
    "dropout": nn.Dropout(0.5),
    "dropout of channels": nn.Dropout2d(0.5),
    "relu": nn.ReLU(),
    "relu in place": nn.ReLU(inplace=True),
    "leaky relu": nn.LeakyReLU(0.2),
    "leaky relu, identity": nn.LeakyReLU(1.0),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}

BIAS = torch.randn(1, 4, 1, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WEIGHT = torch.randn(3, 4, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def in_place_product(x: Tensor) -> Tensor:
    x = x + 1
    x *= 3.0
    x -= 1
    x /= 2
    x += x
    return x


def unpacked_shape(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, c * h, w).reshape(x.size(0), c // 2, -1)


IMAGE_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "conv2d": lambda x: F.conv2d(x, WEIGHT, stride=2, padding=1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)),
    "pad columns": lambda x: F.pad(x, (1, 2)),
    "pad by nothing": lambda x: F.pad(x, (0, 0)),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2, stride=1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "mean": lambda x: x.mean((2, 3)),
    "mean kept": lambda x: torch.mean(x, dim=[-1, -2], keepdim=True),
    "mean of rows": lambda x: x.mean(2),
    "mean of columns": lambda x: x.mean(-1, keepdim=True),
    "mean of positions": lambda x: x.flatten(2).mean(2),
    "flatten": lambda x: torch.flatten(x, 1),
    "flatten part": lambda x: x.flatten(2, 3),
    "view": lambda x: x.view(x.size(0), -1),
    "view by shape": lambda x: x.view(x.shape[0], x.shape[1] * 2, -1),
    "view by count": lambda x: x.view(-1, x.numel() // len_of(x)),
    "unpacked shape": unpacked_shape,
    "reshape": lambda x: torch.reshape(x, (-1, 4 * 36)),
    "squeeze": lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(2),
    "index of size one": lambda x: F.adaptive_avg_pool2d(x, 1)[:, :, 0, 0],
    "unsqueeze": lambda x: x.unsqueeze(1).flatten(1, 2),
    "transpose": lambda x: x.transpose(1, 2),
    "permute": lambda x: torch.permute(x, (0, 3, 1, 2)),
    "slice": lambda x: x[:, :2, 1:5:2],
    "reordering index": lambda x: x[:, [1, 0, 2, 3, 3]],
    "flip": lambda x: x.flip(2),
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "expand": lambda x: x.mean((2, 3), keepdim=True).expand(-1, -1, 3, 2),
    "concatenation": lambda x: torch.cat([x, x[:, :2], x.flip(1)], 1),
    "concatenation of columns": lambda x: torch.cat([x[..., 3:], x], dim=-1),
    "chunks put together again": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "difference of parts": lambda x: x.split(2, 1)[0] - x.split(2, 1)[1],
    "new axis": lambda x: x[:, None].flatten(1, 2),
    "add constant": lambda x: x + BIAS,
    "add constant of one image": lambda x: BIAS[0] + x,
    "constant minus": lambda x: BIAS - x,
    "constant times": lambda x: BIAS * x,
    "divide by constant": lambda x: x / (BIAS.abs() + 1),
    "multiply by constant": lambda x: torch.mul(BIAS, x),
    "subtract from constant": lambda x: 1 - x,
    "contiguous": lambda x: x.contiguous(),
    "same dtype": lambda x: x.to(x.dtype).double().to(x.device),
    "dropout": lambda x: F.dropout(x, training=False),
    "batch_norm": lambda x: F.batch_norm(x, BIAS.flatten(), BIAS.flatten().abs(), BIAS.flatten(), eps=0.1),
}


def len_of(x: Tensor) -> int:
    return x.size(0)


VECTOR_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, True),
    "x.relu": lambda x: x.relu(),
    "x.relu_": lambda x: x.clone().relu_(),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "leaky_relu default": F.leaky_relu,
    "sigmoid": torch.sigmoid,
    "F.sigmoid": F.sigmoid,
    "x.sigmoid": lambda x: x.sigmoid(),
    "tanh": torch.tanh,
    "F.tanh": F.tanh,
    "x.tanh": lambda x: x.tanh(),
    "add": lambda x: x + torch.tanh(x),
    "torch.add": lambda x: torch.add(x, torch.tanh(x), alpha=-2),
    "x.add": lambda x: x.add(torch.tanh(x)),
    "add itself": lambda x: x + x,
    "subtract": lambda x: torch.tanh(x) - x,
    "torch.sub": lambda x: torch.sub(x, torch.tanh(x), alpha=3),
    "sum of a list": lambda x: sum([x, torch.relu(x)]),
    "iadd": lambda x: operator.iadd(torch.tanh(x), x),
    "arithmetic": lambda x: -(2 * x - 3) / 4 + 0.5,
    "torch arithmetic": lambda x: torch.neg(torch.div(torch.mul(x, 2), 5)),
    "constant minus": lambda x: torch.sub(BIAS.flatten(), x, alpha=2),
    "in place": in_place_product,
    "linear": lambda x: F.linear(x, WEIGHT[:, :, 0, 0], BIAS.flatten()[:3]),
    "matmul": lambda x: x @ WEIGHT[:, :, 0, 0].t(),
    "torch.matmul": lambda x: torch.matmul(x, WEIGHT[:, :, 1, 1].t()),
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "inside"])
@pytest.mark.parametrize("name", MODULES)
def test_module_equals_its_graph(name: str, alone: bool) -> None:
    model = randomise(Wrapped(MODULES[name], IMAGE, alone)).eval()
    assert_same(trace(model, IMAGE), model)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "inside"])
@pytest.mark.parametrize("name", IMAGE_FUNCTIONS)
def test_function_of_images_equals_its_graph(name: str, alone: bool) -> None:
    model = randomise(Wrapped(IMAGE_FUNCTIONS[name], IMAGE, alone)).eval()
    assert_same(trace(model, IMAGE), model)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "inside"])
@pytest.mark.parametrize("name", VECTOR_FUNCTIONS)
def test_function_of_vectors_equals_its_graph(name: str, alone: bool) -> None:
    model = randomise(Wrapped(VECTOR_FUNCTIONS[name], (4,), alone)).eval()
    assert_same(trace(model, (4,)), model)


@pytest.mark.parametrize("module", [nn.Linear(4, 3), nn.Linear(4, 3, bias=False), nn.BatchNorm1d(4), nn.ReLU()])
def test_a_single_layer_is_a_network(module: nn.Module) -> None:
    model = randomise(module).eval()
    assert_same(trace(model, (4,)), model)


@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_is_folded_into_the_layer_before_it(bias: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 3, 3, bias=bias), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5, bias=bias), nn.BatchNorm1d(5)
    )
    randomise(model).eval()
    network = trace(model, IMAGE)
    assert [type(node) for node in network.nodes if isinstance(node, Conv | Linear | Scale)] == [Conv, Linear]
    assert_same(network, model)


def test_batch_norm_is_not_folded_into_a_layer_that_something_else_reads() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.bn = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            z = self.fc(x)
            return torch.relu(self.bn(z)) + z

    model = randomise(Branches()).eval()
    network = trace(model, (4,))
    assert sum(isinstance(node, Scale) for node in network.nodes) == 1
    assert_same(network, model)


def test_asymmetric_padding_becomes_a_pad_node_with_the_odd_row_at_the_end() -> None:
    model = randomise(nn.Sequential(nn.Conv2d(4, 3, (4, 3), padding="same"), nn.Flatten()))
    network = trace(model, IMAGE)
    (pad,) = [node for node in network.nodes if isinstance(node, Pad)]
    assert pad.pads == (1, 1, 1, 2)


def test_normalisation_by_constants_is_one_node() -> None:
    model = Wrapped(lambda x: (x - BIAS) / (BIAS.abs() + 1), IMAGE, True).double()
    network = trace(model, IMAGE)
    assert sum(isinstance(node, Scale) for node in network.nodes) == 1
    assert_same(network, model)


def test_dead_branches_are_dropped() -> None:
    def with_dead_branch(x: Tensor) -> Tensor:
        torch.relu(x + 1)
        return torch.relu(x) + x

    network = trace(Wrapped(with_dead_branch, (4,), True).double(), (4,))
    assert [type(node).__name__ for node in network.nodes] == ["Input", "Activation", "Add"]
    assert isinstance(network.nodes[network.output], Add)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "max pool with indices": (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], IMAGE),
    "conv1d": (nn.Conv1d(4, 4, 1), (4, 6)),
    "reflecting convolution": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), IMAGE),
    "leaky relu above one": (nn.LeakyReLU(1.5), IMAGE),
    "padding with ones": (lambda x: F.pad(x, (1, 1), value=1.0), IMAGE),
    "cropping": (lambda x: F.pad(x, (-1, 0)), IMAGE),
    "ceil mode": (nn.AvgPool2d(4, ceil_mode=True), IMAGE),
    "uneven adaptive pool": (nn.AdaptiveAvgPool2d(4), IMAGE),
    "batch statistics": (nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    "product of branches": (lambda x: x * x, (4,)),
    "division by the input": (lambda x: 1 / x, (4,)),
    "matrix from the input": (lambda x: F.linear(x, x), (3,)),
    "constant first": (lambda x: WEIGHT[:, :, 0, 0] @ x, (4,)),
    "sum over broadcast shapes": (lambda x: x + x.mean((2, 3), keepdim=True), IMAGE),
    "constant per batch row": (lambda x: x + torch.ones(3, 1), (4,)),
    "constant that widens": (lambda x: x + torch.ones(5), (1,)),
    "mean of a vector": (lambda x: x.mean(1, keepdim=True), (4,)),
    "concatenation along the batch": (lambda x: torch.cat([x, x], 0), (4,)),
    "concatenation with a constant": (lambda x: torch.cat([x, torch.ones(2, 4)], 1), (4,)),
    "one input of the batch": (lambda x: x[:1], IMAGE),
    "batch axis flattened": (lambda x: x.flatten(0, 1), IMAGE),
    "batch axis mixed": (lambda x: x.view(6, -1), IMAGE),
    "constant overwritten": (lambda x: torch.ones(4).add_(x), (4,)),
    "constant overwritten by an operator": (lambda x: operator.iadd(torch.ones(4), x), (4,)),
    "random dropout": (lambda x: F.dropout(x), (4,)),
    "other dtype": (lambda x: x.half(), (4,)),
    "other dtype by name": (lambda x: x.float(), (4,)),
    "linear on a matrix": (nn.Linear(6, 6), (4, 6)),
    "unknown argument": (lambda x: torch.div(x, 2, rounding_mode="floor"), (4,)),
    "transpose by attribute": (lambda x: x.mT, IMAGE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_outside_the_set_is_refused_before_any_comparison(name: str) -> None:
    function, shape = REFUSED[name]
    model = Wrapped(function, shape, True).double()
    with pytest.raises(UnsupportedOperationError, match=r"is not supported: .+\. [A-Z].+\.$"):
        trace(model, shape, check=False)
