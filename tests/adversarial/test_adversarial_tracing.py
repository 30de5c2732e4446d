"""Networks whose graph would differ from the model in a spike so narrow that no comparison meets it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.attacks import attack
from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.network import evaluate, trace
from lipgraft.network.recording import check_calls
from lipgraft.network.tracing import trace_calls
from lipgraft.verification import AttackSettings, VerifySettings, verify

X, Y, EPS = torch.full((1, 2), 0.5), torch.tensor([0]), 0.1
SPIKE = torch.tensor([[0.5037, 0.5]])
"""Where the first hidden number is -2; it is 1 away from there."""

Forward = Callable[["Spiked", Tensor], Tensor]


class Spiked(nn.Module):
    """The margin of class 0 is h_0 + 0.5: -1.5 in the spike, but 0.5 if h_0 was passed through a ReLU before."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.first, self.hidden, self.out = nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 2)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout()
        self.rest = forward
        width = 1e-3
        centre = float(SPIKE[0, 0])
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[1.0, 0.0]] * 3))
            self.first.bias.copy_(-torch.tensor([centre - width, centre, centre + width]))
            self.hidden.weight.zero_()
            self.hidden.weight[0] = torch.tensor([-1.0, 2.0, -1.0]) * 3 / width
            self.hidden.bias.fill_(1.0)
            self.out.weight.zero_()
            self.out.weight[0, 0] = 1.0
            self.out.bias.copy_(torch.tensor([0.5, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self, self.hidden(self.first(x).relu()))


def overwriting(copied: Callable[[Tensor], Tensor], before: Callable[[Tensor], Tensor] = lambda h: h) -> Forward:
    """Overwrite copied(h), and return h itself."""

    def forward(self: Spiked, h: Tensor) -> Tensor:
        h = before(h)
        y = copied(h)
        y.relu_()
        return self.out((h + 0 * y).flatten(1))

    return forward


def turned(h: Tensor) -> Tensor:
    """The same numbers, which do not lie in their order in memory. h: (B, 4) -> (B, 2, 2)."""
    return h.reshape(-1, 2, 2).transpose(1, 2)


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": lambda h: h.clone(),
    "repeat": lambda h: h.repeat(1, 1),
    "list": lambda h: h[:, [0, 1, 2, 3]],
    "tensor": lambda h: h[:, torch.arange(4)],
    "index_select": lambda h: h.index_select(1, torch.arange(4)),
    "roll": lambda h: h.roll(4, 1),
    "flip": lambda h: h.unsqueeze(-1).flip(-1).squeeze(-1),
    "copy=True": lambda h: h.to(torch.float32, copy=True),
    "cat": lambda h: torch.cat([h], 1),
    "padding by nothing": lambda h: F.pad(h.reshape(-1, 1, 2, 2), (0, 0, 0, 0)).flatten(1),
    "plus nothing": lambda h: h + 0,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_overwriting_a_copy_leaves_the_original(copied: Callable[[Tensor], Tensor]) -> None:
    model = Spiked(overwriting(copied))
    network = trace(model, (2,))
    torch.testing.assert_close(evaluate(network, SPIKE)[network.output], model(SPIKE), rtol=1e-3, atol=1e-3)
    assert verify(model, X, Y, EPS)[0].status == "falsified"


DOUBTFUL = {
    "contiguous": overwriting(lambda h: h.contiguous(), turned),
    "memory format": overwriting(
        lambda h: h.to(memory_format=torch.channels_last), lambda h: h.reshape(-1, 1, 2, 2).transpose(2, 3)
    ),
    "reshape": overwriting(lambda h: h.reshape(-1, 2, 2), turned),
    "flatten": overwriting(lambda h: h.unsqueeze(2).flatten(2), lambda h: turned(h).reshape(-1, 4)),
    "a view of the same shape": overwriting(lambda h: h[:, :]),
}


@pytest.mark.parametrize("forward", DOUBTFUL.values(), ids=DOUBTFUL)
def test_overwriting_what_may_be_a_copy_is_refused_where_the_original_is_read_later(forward: Forward) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"which is used later, has or may have too.+without in-place"):
        trace(Spiked(forward), (2,), check=False)


def whole_after_parts(self: Spiked, h: Tensor) -> Tensor:
    parts = h.chunk(2, 1)
    F.hardtanh_(h, -1, 1)
    return self.out(torch.cat([parts[0], parts[1]], 1))


def part_among_parts(self: Spiked, h: Tensor) -> Tensor:
    parts = h.split(2, 1)
    parts[0].relu_()
    return self.out(torch.cat([parts[0], parts[1]], 1))


@pytest.mark.parametrize("forward", [whole_after_parts, part_among_parts])
def test_parts_of_an_overwritten_tensor_are_not_read_as_they_were(forward: Forward) -> None:
    with pytest.raises(UnsupportedOperationError, match="which is used later"):
        trace(Spiked(forward), (2,), check=False)


def in_place_after_dropout(self: Spiked, h: Tensor) -> Tensor:
    self.relu(self.drop(h))
    return self.out(h)


def flat(self: Spiked, h: Tensor) -> Tensor:
    h = turned(h).contiguous()
    h = F.relu_(h.flatten(1))
    return self.out(h)


def residual(self: Spiked, h: Tensor) -> Tensor:
    out = F.relu(h)
    out += h
    return self.out(self.relu(out.view(-1, 4)))


def parts(self: Spiked, h: Tensor) -> Tensor:
    left, right = self.relu(h).chunk(2, 1)
    return self.out(torch.cat([left, right], 1))


@pytest.mark.parametrize("forward", [in_place_after_dropout, flat, residual, parts])
def test_usual_patterns_in_place_are_traced(forward: Forward) -> None:
    model = Spiked(forward)
    network = trace(model, (2,))
    x = torch.cat([SPIKE, torch.rand(20, 2, generator=torch.Generator().manual_seed(0))])
    model.eval()
    torch.testing.assert_close(evaluate(network, x)[network.output], model(x), rtol=1e-3, atol=1e-3)


def beside_proxies(self: Spiked, h: Tensor) -> Tensor:
    return self.out(h if isinstance(h, Tensor) else h.relu())


def only_for_tensors(self: Spiked, h: Tensor) -> Tensor:
    if not torch.is_tensor(h):
        h = h.relu()
    return self.out(h)


def other_constant(self: Spiked, h: Tensor) -> Tensor:
    """The same calls with another number, where h_0 is negative."""
    return self.out(h.relu() - (0.0 if isinstance(h, torch.fx.Proxy) else 1.0) * (-h).relu())


def other_operand(self: Spiked, h: Tensor) -> Tensor:
    """The same calls with the same numbers, on another tensor."""
    y = h.relu()
    return self.out((h if isinstance(h, Tensor) else y) + 0.0)


def while_traced(self: Spiked, h: Tensor) -> Tensor:
    return self.out(h.relu() if torch.fx._symbolic_trace.is_fx_tracing() else h)


def asking_rarely(self: Spiked, h: Tensor) -> Tensor:
    """Does what the graph does, but in the spike."""
    if isinstance(h, Tensor) and h.tolist()[0][0] < 0:
        return self.out(h)
    return self.out(h.relu())


def other_result(self: Spiked, h: Tensor) -> Tensor:
    """The same calls, of which another result is returned."""
    late, early = self.out(h), self.out(h.relu())
    return late if isinstance(h, Tensor) else early


def other_keyword(self: Spiked, h: Tensor) -> Tensor:
    """The same values, given by other names."""
    named = "count_include_pad" if isinstance(h, Tensor) else "ceil_mode"
    options = {"count_include_pad": False} if named == "count_include_pad" else {"ceil_mode": False}
    return self.out(F.avg_pool2d(h.view(-1, 1, 2, 2), 3, 1, 1, **options).flatten(1))


def other_attribute(self: Spiked, h: Tensor) -> Tensor:
    square = h.view(-1, 2, 2)
    return self.out((square.mT if isinstance(h, Tensor) else square).flatten(1))


def other_weights(self: Spiked, h: Tensor) -> Tensor:
    """Weights that are there during the call alone."""
    kept = self.out.weight.data
    if isinstance(h, Tensor):
        self.out.weight.data = -kept
    y = self.out(h)
    self.out.weight.data = kept
    return y


ASKING = (
    *(asking_rarely, beside_proxies, only_for_tensors, other_attribute),
    *(other_constant, other_operand, other_result, while_traced),
)


@pytest.mark.parametrize("forward", ASKING)
def test_a_forward_that_looks_at_what_its_tensors_are_is_refused(forward: Forward) -> None:
    with pytest.raises(UnsupportedOperationError, match="makes other calls than tracing it sees"):
        verify(Spiked(forward), X, Y, EPS)


@pytest.mark.parametrize("forward", [other_keyword, other_weights])
def test_calls_are_compared_with_their_keywords_and_with_constants_as_they_were(forward: Forward) -> None:
    with pytest.raises(UnsupportedOperationError, match="makes other calls than tracing it sees"):
        check_calls(trace_calls(Spiked(forward).eval()), X)


def harmless(self: Spiked, h: Tensor) -> Tensor:
    """Calls that return what they are given."""
    if torch.is_tensor(h):
        h = h.to("cpu").float().contiguous()
    return self.out(h.relu())


def test_calls_that_change_nothing_may_depend_on_what_tensors_are() -> None:
    model = Spiked(harmless)
    assert trace(model, (2,)).output_shape == (2,)


def test_methods_that_take_no_part_in_a_forward_may_be_replaced() -> None:
    model = Spiked(lambda self, h: self.out(h.relu()))
    model.out.train = lambda mode=True: model.out  # type: ignore[method-assign, assignment, misc]
    assert trace(model, (2,)).output_shape == (2,)


class Called(Spiked):
    """What happens when it is called is not its forward."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(self.first(x).relu()))


@pytest.mark.parametrize("kind", ["model", "implementation", "instance"])
def test_a_module_whose_call_is_not_its_forward_is_refused(kind: str) -> None:
    def forward(self: Spiked, h: Tensor) -> Tensor:
        return self.out(h.relu())

    model = Called(forward) if kind == "model" else Spiked(forward)
    if kind == "implementation":
        model.out._call_impl = model.out.forward
    elif kind == "instance":
        model.relu = nn.ReLU()
        model.out._wrapped_call_impl = model.out.forward
    with pytest.raises(UnsupportedOperationError, match="has its own __call__"):
        trace(model, (2,), check=False)


def test_graph_modules_and_parametrised_layers_have_calls_of_their_own() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    model = nn.Sequential(torch.fx.symbolic_trace(nn.Sequential(layer, nn.ReLU())), nn.Linear(2, 2))
    trace(model, (2,))
    trace(torch.fx.symbolic_trace(model), (2,))


def data_replaced(self: Spiked, h: Tensor) -> Tensor:
    """Gives h_0 the value that the graph does not see."""
    y = h.relu()
    y.data = h
    return self.out(y)


def data_written(self: Spiked, h: Tensor) -> Tensor:
    h.data.relu_()
    return self.out(h)


def columns(self: Spiked, h: Tensor) -> Tensor:
    h[:, 0] = h[:, 0].relu()
    return self.out(h)


def masked(self: Spiked, h: Tensor) -> Tensor:
    h[h < 0] = 0.0
    return self.out(h)


def into_a_column(self: Spiked, h: Tensor) -> Tensor:
    h[:, 0].relu_()
    return self.out(h)


def into_a_view(self: Spiked, h: Tensor) -> Tensor:
    h.view(-1, 4).relu_()
    return self.out(h)


def into_an_expanded_view(self: Spiked, h: Tensor) -> Tensor:
    h.unsqueeze(1).expand(-1, 1, 4).relu_()
    return self.out(h)


def into_out(self: Spiked, h: Tensor) -> Tensor:
    torch.mul(h, 1.0, out=h)
    return self.out(h)


def into_a_weight(self: Spiked, h: Tensor) -> Tensor:
    F.relu(self.out.weight, True)
    return self.out(h)


def into_a_view_of_a_weight(self: Spiked, h: Tensor) -> Tensor:
    F.relu_(self.out.weight.detach()[0])
    return self.out(h)


def counting(self: Spiked, h: Tensor) -> Tensor:
    """Another function once it has been called often enough."""
    self.calls += 1
    return self.out(torch.clamp_max(self.calls, 4) * 0.0 + h * (self.calls + 1) / (self.calls + 1))


WRITING = (data_replaced, data_written, columns, masked, into_a_column, into_a_view, into_an_expanded_view, into_out,
           into_a_weight, into_a_view_of_a_weight, counting)  # fmt: skip


@pytest.mark.parametrize("forward", WRITING)
def test_other_ways_of_writing_into_tensors_are_refused(forward: Forward) -> None:
    model = Spiked(forward)
    model.register_buffer("calls", torch.zeros(()))
    with pytest.raises(UnsupportedOperationError):
        verify(model, X, Y, EPS)


def test_a_layer_of_which_a_function_was_replaced_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 2))
    plain = model[0]._conv_forward
    model[0]._conv_forward = lambda x, weight, bias: plain(x, weight, bias).relu()  # type: ignore[method-assign]
    with pytest.raises(UnsupportedOperationError, match="has its own _conv_forward instead of its class's"):
        trace(model, (1, 2, 2), check=False)


class Squeezed(Spiked):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


def test_a_model_that_drops_the_batch_axis_of_a_single_input_is_refused() -> None:
    model = Squeezed(lambda self, h: self.out(h))
    with pytest.raises(UnsupportedOperationError, match=r"returns shape \(2,\).+depends on the batch size"):
        trace(model, (2,))
    with pytest.raises(UnsupportedOperationError, match="depends on the batch size"):
        verify(model, X, Y, EPS)
    with pytest.raises(SettingsError, match=r"got \(2,\) for one image"):
        attack(model, X, Y, EPS)


def without_gradient(self: Spiked, h: Tensor) -> Tensor:
    with torch.no_grad():
        return self.out(h)


@pytest.mark.parametrize("forward", [without_gradient, lambda self, h: self.out(h).detach()])
def test_a_model_without_gradients_is_proved_without_attacks(forward: Forward) -> None:
    model = Spiked(forward)
    with pytest.raises(SettingsError, match="remove torch"):
        attack(model, X, Y, EPS)
    with pytest.raises(SettingsError, match="restarts: 0"):
        verify(model, X, Y, EPS)
    settings = VerifySettings(attack=AttackSettings(restarts=0))
    assert verify(model, X, Y, EPS, settings=settings)[0].status == "falsified"
    assert verify(model, X, Y, 1e-3, settings=settings)[0].status == "verified"
