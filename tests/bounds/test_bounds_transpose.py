"""Every way to transpose a convolution is the transpose: autograd's vjp says so, on layers and on windows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bounds_graphs import convolutions
from lipgraft import models
from lipgraft.bounds.windows import cut, spread
from lipgraft.network import Conv, trace, transpose
from lipgraft.network.window import Window

WAYS = ["taps", "phases", "library"]
IMAGES = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))
SEEDS = st.integers(0, 2**31 - 1)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Conv, tuple[int, int, int]]:
    """A convolution in float64 with the shape of its input."""
    shape = draw(IMAGES)
    module = draw(convolutions(shape))
    weight = torch.randn(module.weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = tuple(module(torch.zeros(1, *shape)).shape[1:])
    pairs = [(int(a), int(b)) for a, b in (module.stride, module.padding, module.dilation)]
    return Conv("conv", (0,), out, weight, None, pairs[0], pairs[1], pairs[2], module.groups), shape


def use(way: str, conv: Conv, patch: pytest.MonkeyPatch) -> None:
    """Make one way the only one, wherever it applies at all."""
    plain = conv.groups == 1
    applies = {"taps": plain, "phases": plain and conv.dilation == (1, 1) and conv.stride[0] == conv.stride[1]}
    for name in ("taps", "phases"):
        wanted = way == name and applies[name]
        patch.setattr(transpose, f"_use_{name}", lambda *_, wanted=wanted: wanted)


def vjp(conv: Conv, shape: tuple[int, ...], rows: Tensor, padding: tuple[int, int]) -> Tensor:
    """The gradient of sum(rows * conv(x)): (N, *out) -> (N, *shape)."""
    x = torch.zeros(len(rows), *shape, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(x, conv.weight, None, conv.stride, padding, conv.dilation, conv.groups)
    return torch.autograd.grad(y, x, rows)[0]


def last(rows: Tensor) -> Tensor:
    """The same rows with their channels side by side in memory."""
    return rows.movedim(-3, -1).contiguous().movedim(-1, -3)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60)
@given(nodes(), SEEDS, st.booleans())
def test_rows_on_a_layer_go_back_by_the_transpose_in_either_order_of_memory(
    way: str, example: tuple[Conv, tuple[int, int, int]], seed: int, reordered: bool
) -> None:
    conv, shape = example
    rows = torch.randn(2, 1, 3, *conv.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        use(way, conv, patch)
        got = transpose.back_layer(conv, last(rows) if reordered else rows, shape, {})
    assert got.shape == (2, 1, 3, *shape)
    torch.testing.assert_close(got.flatten(0, 2), vjp(conv, shape, rows.flatten(0, 2), conv.padding))


@pytest.mark.parametrize("way", [*WAYS, "matrix", "strips"])
@settings(max_examples=60)
@given(nodes(), SEEDS, st.integers(1, 3), st.integers(1, 3))
def test_rows_on_a_window_go_back_to_the_window_that_it_reads(
    way: str, example: tuple[Conv, tuple[int, int, int]], seed: int, height: int, width: int
) -> None:
    conv, shape = example
    window = conv.window(Window((height, width), (1, 1), (0, 0)))
    rows = torch.randn(
        2, 1, 3, conv.shape[0], height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    with pytest.MonkeyPatch.context() as patch:
        use(way, conv, patch)
        patch.setattr(transpose, "MATRIX_ADVANTAGE", float("inf") if way == "matrix" else 0.0)
        patch.setattr(transpose, "STRIPS_ADVANTAGE", float("inf") if way == "strips" else 0.0)
        got = transpose.back_window(conv, last(rows) if way == "strips" else rows, {})
    # Padding is the caller's business: a window that hangs over the edge is cleaned later.
    want = vjp(conv, (shape[0], *window.size), rows.flatten(0, 2), (0, 0))
    torch.testing.assert_close(got.flatten(0, 2), want)


@settings(max_examples=60)
@given(IMAGES, IMAGES, st.tuples(*[st.integers(1, 3)] * 2), st.tuples(*[st.integers(-3, 0)] * 2), SEEDS)
def test_spreading_rows_is_the_transpose_of_cutting_windows(
    shape: tuple[int, int, int],
    sizes: tuple[int, int, int],
    stride: tuple[int, int],
    offset: tuple[int, int],
    seed: int,
) -> None:
    """<rows, cut(layer)> = <spread(rows), layer>, for every grid place; what hangs over the edge counts for nothing."""
    generator = torch.Generator().manual_seed(seed)
    grid, window = (2, 3), Window(sizes[1:], stride, offset)
    place = torch.randint(0, 6, (2, 4), generator=generator)
    layer = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    rows = torch.randn(2, 1, 4, shape[0], *window.size, generator=generator, dtype=torch.float64)
    windows = cut(layer, window, grid)
    assert windows.shape == (2, 6, shape[0] * window.area())
    blocks = windows.view(2, 6, shape[0], *window.size)
    assert torch.equal(cut(layer, window, grid, last=True), blocks.movedim(2, -1).flatten(2))
    inner = (rows.flatten(3)[:, 0] * windows[torch.arange(2).unsqueeze(1), place]).sum(-1)
    wide = spread(rows, window, shape[1:], grid, place)
    torch.testing.assert_close((wide[:, 0] * layer.unsqueeze(1)).flatten(2).sum(-1), inner)


def test_a_window_that_reads_nothing_but_padding_has_zero_rows() -> None:
    rows = torch.ones(1, 1, 1, 1, 2, 2)
    wide = spread(rows, Window((2, 2), (1, 1), (-5, -5)), (3, 3), (1, 1), torch.zeros(1, 1, dtype=torch.long))
    assert (wide == 0).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["cnn-b", "conv-big", "conv-huge", "resnet4b"])
def test_rows_of_the_papers_networks_go_back_by_the_transpose(name: str, way: str, generator: torch.Generator) -> None:
    """At full size: some ways depend on the number of channels, some sizes leave a last row of pixels unread."""
    model = models.build(name, "cifar10", batchnorm=False if name == "conv-huge" else None, seed=0)
    network = trace(model, model.spec.input_shape, check=False).to(dtype=torch.float64)
    for conv in network.nodes:
        if isinstance(conv, Conv):
            shape = network.nodes[conv.inputs[0]].shape
            rows = torch.randn(1, 1, 1, *conv.shape, generator=generator, dtype=torch.float64)
            with pytest.MonkeyPatch.context() as patch:
                use(way, conv, patch)
                got = transpose.back_layer(conv, rows, shape, {})
            torch.testing.assert_close(got.flatten(0, 2), vjp(conv, shape, rows.flatten(0, 2), conv.padding))


@pytest.mark.parametrize(("dtype", "way"), [(torch.float32, "_by_phases"), (torch.float64, "_library")])
def test_rows_of_few_channels_take_the_way_that_is_fast_in_their_precision(
    dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    for name in ("_by_phases", "_library"):
        original = getattr(transpose, name)
        monkeypatch.setattr(transpose, name, lambda *a, n=name, f=original: (taken.append(n), f(*a))[1])
    conv = Conv("conv", (0,), (16, 8, 8), torch.ones(16, 1, 3, 3, dtype=dtype), None, padding=(1, 1))
    transpose.back_layer(conv, torch.ones(2, 16, 8, 8, dtype=dtype), (1, 8, 8), {})
    assert taken == [way]
