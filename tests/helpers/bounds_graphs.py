"""Random small networks with everything the graph knows: for hypothesis."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from bounds_cases import BASES, REFERENCE, randomise
from lipgraft.grafting import GraftedActivation
from lipgraft.network import Network, trace

Shape = tuple[int, ...]


class Residual(nn.Module):
    """body(x) + shortcut(x), or their difference."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, minus: bool) -> None:
        super().__init__()
        self.body, self.shortcut, self.minus = body, shortcut, minus

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) - self.shortcut(x) if self.minus else self.body(x) + self.shortcut(x)


class Affine(nn.Module):
    """x * scale + shift with constants of any shape that broadcasts."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Twice(nn.Module):
    """Two activations read one pre-activation."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x)


def shape_after(layer: nn.Module, shape: Shape) -> Shape:
    return tuple(layer(torch.zeros(2, *shape)).shape[1:])


@st.composite
def convolutions(draw: st.DrawFn, shape: Shape) -> nn.Conv2d:
    """A convolution that fits, with any stride, padding, dilation and groups."""
    channels, height, width = shape
    padding = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    sides = [n + 2 * p for n, p in zip((height, width), padding, strict=True)]
    dilation = tuple(draw(st.integers(1, 2)) for _ in sides)
    kernel = tuple(draw(st.integers(1, max(1, min(3, (n - 1) // d + 1)))) for n, d in zip(sides, dilation, strict=True))
    same = draw(st.booleans())
    step = draw(st.integers(1, 3))
    stride = (step, step if same else draw(st.integers(1, 3)))
    groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
    out = groups * draw(st.integers(1, 4 // groups))
    return nn.Conv2d(channels, out, kernel, stride, padding, dilation=dilation, groups=groups, bias=draw(st.booleans()))


@st.composite
def activations(draw: st.DrawFn, shape: Shape, seed: torch.Generator) -> nn.Module:
    base = BASES[draw(st.sampled_from(sorted(REFERENCE)))]()
    if draw(st.booleans()):
        return base
    return GraftedActivation(base, torch.rand(shape, generator=seed) < draw(st.sampled_from([0.0, 0.5, 1.0])))


@st.composite
def constants(draw: st.DrawFn, shape: Shape, seed: torch.Generator) -> Affine:
    """A scale and shift per number, per channel or per element, sometimes zero or negative."""
    sizes = [(), (shape[0], *[1] * (len(shape) - 1)), shape]
    scale = torch.randn(draw(st.sampled_from(sizes)), generator=seed)
    return Affine(scale, torch.randn(draw(st.sampled_from(sizes)), generator=seed))


@st.composite
def bodies(draw: st.DrawFn, shape: Shape, seed: torch.Generator) -> nn.Module:
    """A convolution or two with activations that keep the shape of an image."""
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 2))):
        kernel = draw(st.sampled_from([1, 3]))
        layers.append(nn.Conv2d(shape[0], shape[0], kernel, padding=kernel // 2))
        if draw(st.booleans()):
            layers.append(draw(activations(shape, seed)))
    return nn.Sequential(*layers)


@st.composite
def image_layers(draw: st.DrawFn, shape: Shape, seed: torch.Generator) -> nn.Module:
    kind = draw(st.sampled_from(["conv", "conv", "residual", "residual", "down", "pad", "pool", "affine", "twice"]))
    channels, height, width = shape
    match kind:
        case "residual":
            return Residual(draw(bodies(shape, seed)), nn.Identity(), draw(st.booleans()))
        case "down":  # both branches take the same stride with windows of different size
            conv = nn.Conv2d(channels, 2, 3, stride=2, padding=1)
            body = nn.Sequential(conv, draw(activations(shape_after(conv, shape), seed)), nn.Conv2d(2, 2, 3, padding=1))
            return Residual(body, nn.Conv2d(channels, 2, 1, stride=2), draw(st.booleans()))
        case "pad":
            return nn.ZeroPad2d(tuple(draw(st.integers(0, 2)) for _ in range(4)))
        case "pool" if min(height, width) >= 2:
            counted = draw(st.booleans())
            return nn.AvgPool2d(2, draw(st.integers(1, 2)), padding=draw(st.integers(0, 1)), count_include_pad=counted)
        case "affine":
            return draw(constants(shape, seed))
        case "twice":
            return Twice(draw(activations(shape, seed)), draw(activations(shape, seed)))
    return draw(convolutions(shape))


@st.composite
def image_networks(draw: st.DrawFn) -> Network:
    """A network on small images, in float64."""
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    shape: Shape = (draw(st.integers(1, 3)), draw(st.integers(3, 6)), draw(st.integers(3, 6)))
    start, layers = shape, []
    for _ in range(draw(st.integers(1, 4))):
        layer = draw(image_layers(shape, seed))
        layers.append(layer)
        shape = shape_after(layer, shape)
        if draw(st.booleans()):
            layers.append(draw(activations(shape, seed)))
    layers.append(nn.Flatten())
    size = shape[0] * shape[1] * shape[2]
    if draw(st.booleans()):
        hidden = nn.Linear(size, 12)
        folded = nn.Unflatten(1, draw(st.sampled_from([(12,), (3, 2, 2), (3, 4)])))
        inner = shape_after(folded, (12,))
        layers += [hidden, folded, draw(activations(inner, seed)), nn.Flatten()]
        size = 12
    layers.append(nn.Linear(size, 3))
    return trace(randomise(nn.Sequential(*layers), seed, 1.4), start).to(dtype=torch.float64)
