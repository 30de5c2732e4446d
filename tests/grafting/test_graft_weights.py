"""The weight factor of s_wi against brute force: the dense matrix from each activation to the next ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipgraft.errors import SettingsError
from lipgraft.grafting.graph import last_layers, region, weight_factor
from lipgraft.models.resnet4b import Block
from lipgraft.network import trace

SHAPE = (2, 7, 6)


def dense(model: nn.Module, source: str, sink: str | None, shape: tuple[int, ...]) -> Tensor:
    """d z_sink / d h_source, (m, n), every other activation's output held fixed; sink None is the model's output."""
    acts = {name: m for name, m in model.named_modules() if isinstance(m, nn.ReLU)}
    inputs: dict[str, Tensor] = {}
    free: dict[str, Tensor] = {}

    def hook(name: str):  # type: ignore[no-untyped-def]
        def run(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
            inputs[name] = args[0]
            return free.get(name, out.detach())

        return run

    handles = [m.register_forward_hook(hook(name)) for name, m in acts.items()]
    x = torch.randn(1, *shape)
    model(x)
    h = torch.randn_like(inputs[source])

    def run(value: Tensor) -> Tensor:
        free[source] = value
        out = model(x)
        return out if sink is None else inputs[sink]

    jacobian = torch.autograd.functional.jacobian(run, h)
    for handle in handles:
        handle.remove()
    return jacobian.reshape(-1, h.numel())


def brute(model: nn.Module, source: str, sinks: dict[str | None, Tensor], shape: tuple[int, ...], over: str) -> Tensor:
    """max (or mean) over the selected k of all sinks of |w_jk|; sinks: boolean masks."""
    rows = [dense(model, source, sink, shape).abs()[mask.flatten()] for sink, mask in sinks.items()]
    weights = torch.cat(rows)
    if not len(weights):
        return torch.zeros(weights.shape[1])
    return weights.amax(0) if over == "max" else weights.mean(0)


def masks_for(network, share: float, seed: int) -> dict[str, Tensor]:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(seed)
    return {node.name: torch.rand(node.shape, generator=generator) < share for _, node in network.activations()}


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.sampled_from([1, 2, 4]),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    over=st.sampled_from(["max", "mean"]),
    seed=st.integers(0, 1000),
)
def test_through_a_strided_padded_dilated_grouped_convolution_and_flatten(
    kernel, stride, padding, dilation, groups, share, over, seed
):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1),
        nn.ReLU(),
        nn.Conv2d(4, 8, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )
    model(torch.zeros(1, *SHAPE))
    network = trace(model, SHAPE)
    masks = masks_for(network, share, seed)
    out = torch.ones(3, dtype=torch.bool)
    for source, sinks in {"1": {"3": masks["3"]}, "3": {"6": masks["6"]}, "6": {None: out}}.items():
        got = weight_factor(network, source, masks, over=over)
        assert region(network, network.names[source]).simple
        torch.testing.assert_close(got.flatten(), brute(model, source, sinks, SHAPE, over))


@pytest.mark.parametrize("over", ["max", "mean"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_through_residual_joins_reaches_the_inner_layer_and_the_one_after_the_join(seed, share, over):
    torch.manual_seed(seed)
    blocks = nn.Sequential(Block(3, 4, 2, "relu"), Block(4, 4, 1, "relu"))
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), blocks, nn.Flatten(), nn.Linear(4 * 4 * 3, 5))
    network = trace(model, SHAPE)
    masks = masks_for(network, share, seed)
    out = torch.ones(5, dtype=torch.bool)
    feeds = {
        "1": ("2.0.act1", "2.0.act2"),  # the first convolution and the 1x1 shortcut
        "2.0.act1": ("2.0.act2",),
        "2.0.act2": ("2.1.act1", "2.1.act2"),  # the first convolution and the identity
        "2.1.act1": ("2.1.act2",),
    }
    for source, names in feeds.items():
        got = weight_factor(network, source, masks, over=over)
        expected = brute(model, source, {name: masks[name] for name in names}, SHAPE, over)
        torch.testing.assert_close(got.flatten(), expected)
    got = weight_factor(network, "2.1.act2", masks, over=over)
    torch.testing.assert_close(got.flatten(), brute(model, "2.1.act2", {None: out}, SHAPE, over))


class TwoConvolutions(nn.Module):
    """Two affine maps in a row, and two paths that meet: the weights are sums of products."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.act1 = nn.Conv2d(2, 3, 3), nn.ReLU()
        self.a, self.pool = nn.Conv2d(3, 3, 3, padding=1), nn.AvgPool2d(2)
        self.act2, self.fc = nn.ReLU(), nn.Linear(3 * 2 * 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act1(self.stem(x))
        return self.fc(self.act2(self.pool(self.a(h) + 2 * h)).flatten(1))


@pytest.mark.parametrize("over", ["max", "mean"])
def test_through_several_affine_maps_and_parallel_paths_composes_them(over):
    torch.manual_seed(0)
    model = TwoConvolutions()
    network = trace(model, SHAPE)
    masks = masks_for(network, 0.5, 0)
    assert not region(network, network.names["act1"]).simple
    got = weight_factor(network, "act1", masks, over=over)
    torch.testing.assert_close(got.flatten(), brute(model, "act1", {"act2": masks["act2"]}, SHAPE, over))


def test_padding_and_scaling_between_layers_count(monkeypatch):
    monkeypatch.setattr("lipgraft.network.nodes.conv.CHUNK", 64)  # several chunks of output channels
    torch.manual_seed(0)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.act1, self.pad = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.ZeroPad2d((1, 2, 0, 1))
            self.conv, self.act2, self.fc = nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Linear(6 * 2 * 3, 4)
            self.register_buffer("factor", torch.randn(3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            h = self.pad(self.factor * self.act1(self.stem(x)))
            return self.fc(self.act2(-3.0 * self.conv(h)).flatten(1))

    model = Scaled()
    network = trace(model, SHAPE)
    masks = masks_for(network, 0.4, 3)
    got = weight_factor(network, "act1", masks)
    torch.testing.assert_close(got.flatten(), brute(model, "act1", {"act2": masks["act2"]}, SHAPE, "max"))


def test_the_last_hidden_layers_are_those_that_feed_no_activation():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert last_layers(trace(model, (3,))) == ["3"]


def test_an_unknown_reduction_is_refused():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(SettingsError, match="unknown over 'median'"):
        weight_factor(trace(model, (3,)), "1", over="median")
