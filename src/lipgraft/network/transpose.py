"""The transposed convolution, five ways; each is the fastest somewhere.

- as a matrix: a window is small, so the convolution between two windows is one matrix, shared by all rows;
- by strips: the same with a smaller matrix, for one row of the window at a time, when channels come last in memory;
- by phases: a stride s is s * s ordinary convolutions, one for each phase of the output;
- by taps: back to very few channels, the product with all taps of the kernel, then added up where taps overlap;
- as the library does it: with dilation or groups.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.network.window import channels_last

# A matrix product does more multiplications than the convolution it replaces, but runs this much faster.
MATRIX_ADVANTAGE = 8.0
STRIPS_ADVANTAGE = 3.0

Cache = dict[object, Tensor]
Shape = tuple[int, ...]
Pair = tuple[int, int]


class Conv(Protocol):
    """A convolution, as `lipgraft.network.Conv` is one."""

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def stride(self) -> Pair: ...
    @property
    def padding(self) -> Pair: ...
    @property
    def dilation(self) -> Pair: ...
    @property
    def groups(self) -> int: ...


def back_window(conv: Conv, data: Tensor, cache: Cache) -> Tensor:
    """Rows on windows of the output -> rows on the larger windows of the input: (..., O, a, b) -> (..., I, a', b')."""
    lead, (channels, a, b) = data.shape[:-3], data.shape[-3:]
    kernel = conv.weight.shape[2:]
    size = [
        (n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip((a, b), conv.stride, conv.dilation, kernel, strict=True)
    ]
    shape = (conv.weight.shape[1] * conv.groups, size[0], size[1])
    if channels_last(data) and not data.requires_grad and size[1] * conv.groups <= STRIPS_ADVANTAGE * kernel[1]:
        return _by_strips(conv, data, shape, cache)
    ways = math.prod(shape) * conv.groups / (math.prod(kernel) * shape[0])
    if ways <= MATRIX_ADVANTAGE:
        key = ("matrix", conv.name, a, b)
        if key not in cache:
            one = torch.eye(channels * a * b, dtype=data.dtype, device=data.device).view(-1, channels, a, b)
            cache[key] = _library(conv, one, (0, 0), (0, 0)).flatten(1)
        return (data.flatten(-3) @ cache[key]).view(*lead, *shape)
    flat = data.reshape(-1, channels, a, b)
    if _use_taps(conv, flat):
        return _by_taps(conv, flat, (0, 0), shape).view(*lead, *shape)
    if _use_phases(conv, flat):
        return _by_phases(conv, flat, (0, 0), shape, cache).view(*lead, *shape)
    return _library(conv, flat, (0, 0), (0, 0)).view(*lead, *shape)


def _by_strips(conv: Conv, data: Tensor, shape: Shape, cache: Cache) -> Tensor:
    """One row of the window after the other, each added to the rows of the larger window that it reads.

    With channels last both are columns side by side of the matrix that has a line for each row of coefficients.
    """
    lead, (channels, a, b) = data.shape[:-3], data.shape[-3:]
    key = ("strips", conv.name, b)
    if key not in cache:
        one = torch.eye(b * channels, dtype=data.dtype, device=data.device).view(-1, 1, b, channels).movedim(-1, 1)
        cache[key] = _library(conv, one, (0, 0), (0, 0)).movedim(1, -1).flatten(1).contiguous()
    strip, line = cache[key], shape[2] * shape[0]
    rows = data.movedim(-3, -1).reshape(-1, a, b * channels)
    out = rows.new_zeros(len(rows), shape[1] * line)
    for y in range(a):
        begin = y * conv.stride[0] * line
        out[:, begin : begin + strip.shape[1]].addmm_(rows[:, y], strip)
    return out.view(*lead, *shape[1:], shape[0]).movedim(-1, -3)


def back_layer(conv: Conv, data: Tensor, shape: Shape, cache: Cache) -> Tensor:
    """Rows on all of the output -> rows on all of the input: (..., O, h, w) -> (..., *shape)."""
    lead, flat = data.shape[:-3], data.reshape(-1, *data.shape[-3:])
    if _use_taps(conv, flat):
        return _by_taps(conv, flat, conv.padding, shape).view(*lead, *shape)
    if _use_phases(conv, flat):
        return _by_phases(conv, flat, conv.padding, shape, cache).view(*lead, *shape)
    missing = [
        n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
        for n, m, s, p, d, k in zip(
            shape[1:], data.shape[-2:], conv.stride, conv.padding, conv.dilation, conv.weight.shape[2:], strict=True
        )
    ]
    # The kernel may leave the last rows and columns of its input unread. The library fills in fewer than a stride.
    fill = [min(m, s - 1) for m, s in zip(missing, conv.stride, strict=True)]
    out = _library(conv, flat, conv.padding, (fill[0], fill[1]))
    if missing != fill:
        out = F.pad(out, (0, missing[1] - fill[1], 0, missing[0] - fill[0]))
    return out.view(*lead, *shape)


def _library(conv: Conv, flat: Tensor, padding: tuple[int, int], fill: tuple[int, int]) -> Tensor:
    if flat.device.type == "cpu" and conv.stride != (1, 1):  # on a CPU twice as fast with channels last, copy included
        flat = flat.contiguous(memory_format=torch.channels_last)
    return F.conv_transpose2d(flat, conv.weight, None, conv.stride, padding, fill, conv.groups, conv.dilation)


def _use_taps(conv: Conv, flat: Tensor) -> bool:
    """On a GPU, where a convolution with so few channels leaves most of a tile empty; a stride fills it with phases."""
    return flat.is_cuda and conv.groups == 1 and conv.stride == (1, 1) and conv.weight.shape[1] < 8


def _by_taps(conv: Conv, flat: Tensor, padding: tuple[int, int], shape: Shape) -> Tensor:
    taps = conv.weight.flatten(1).t() @ flat.flatten(2)
    kernel = conv.weight.shape[2:]
    height, width = (
        (m - 1) * s + d * (k - 1) + 1
        for m, s, d, k in zip(flat.shape[2:], conv.stride, conv.dilation, kernel, strict=True)
    )
    return _framed(F.fold(taps, (height, width), kernel, conv.dilation, 0, conv.stride), padding, shape)


def _use_phases(conv: Conv, flat: Tensor) -> bool:
    """Where phases apply and help: on a GPU always, on a CPU when the library meets too few channels to be fast.

    In double precision a CPU's library works otherwise, and is the faster one however few they are.
    """
    applies = conv.stride[0] == conv.stride[1] and conv.dilation == (1, 1) and conv.groups == 1
    return applies and (flat.is_cuda or (conv.weight.shape[1] < 16 and flat.dtype != torch.float64))


def _by_phases(conv: Conv, flat: Tensor, padding: tuple[int, int], shape: Shape, cache: Cache) -> Tensor:
    """in[q - padding] = sum over taps k = r + s j of out[i - j] w[k], with q = s i + r: a convolution per phase r.

    The phases share one convolution, side by side in its channels, when filling their kernels up to one size costs
    little or when each alone has too few channels to keep the device busy.
    """
    s, (_, channels, kh, kw) = conv.stride[0], conv.weight.shape
    if s == 1 and padding[0] < kh and padding[1] < kw:  # the one phase needs no frame that is cut off again
        kernel = _joined_kernel(conv, 1, cache)
        out = F.conv2d(flat, kernel, padding=(kh - 1 - padding[0], kw - 1 - padding[1]))
        return _framed(out, (0, 0), shape)
    waste = math.ceil(kh / s) * math.ceil(kw / s) * s * s / (kh * kw)
    if waste < 1.5 or channels < 64:
        kernel = _joined_kernel(conv, s, cache)
        out = F.conv2d(flat, kernel, padding=(kernel.shape[2] - 1, kernel.shape[3] - 1))
        return _framed(F.pixel_shuffle(out, s), padding, shape)
    return _framed(_separate(conv, flat, s), padding, shape)


def _framed(out: Tensor, padding: tuple[int, int], shape: Shape) -> Tensor:
    """What remains of the input when its padding is cut off: a view, unless zeros must be added at the far ends."""
    (top, left), (height, width) = padding, shape[1:]
    below, right = top + height - out.shape[2], left + width - out.shape[3]
    if below > 0 or right > 0:
        return F.pad(out, (-left, right, -top, below))
    return out[:, :, top : top + height, left : left + width]


def _joined_kernel(conv: Conv, s: int, cache: Cache) -> Tensor:
    """The kernels of all phases, filled up to one size: (I s s, O, ceil(kh / s), ceil(kw / s))."""
    key = ("phases", conv.name)
    if key not in cache:
        o, c, kh, kw = conv.weight.shape
        taps = F.pad(conv.weight, (0, -kw % s, 0, -kh % s))
        mh, mw = taps.shape[2] // s, taps.shape[3] // s
        # (O, I, j, r, j', r') -> (I r r', O, -j, -j'): the channel order that pixel_shuffle undoes.
        phases = taps.view(o, c, mh, s, mw, s).permute(1, 3, 5, 0, 2, 4).reshape(c * s * s, o, mh, mw)
        cache[key] = phases.flip(2, 3).contiguous()
    return cache[key]


def _separate(conv: Conv, flat: Tensor, s: int) -> Tensor:
    (kh, kw), (h, w) = conv.weight.shape[2:], flat.shape[2:]
    out = flat.new_zeros(len(flat), conv.weight.shape[1], (h - 1) * s + kh, (w - 1) * s + kw)
    for r in range(min(s, kh)):
        for c in range(min(s, kw)):
            kernel = conv.weight[:, :, r::s, c::s].flip(2, 3).transpose(0, 1)
            out[:, :, r::s, c::s] = F.conv2d(flat, kernel, padding=(kernel.shape[2] - 1, kernel.shape[3] - 1))
    return out
