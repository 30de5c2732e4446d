"""Convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.activations.curve import OnnxWriter
from lipgraft.network.nodes.node import Cache, Layout, Shape, Weighted
from lipgraft.network.transpose import back_layer, back_window
from lipgraft.network.window import Window

CHUNK = 2**26  # elements of the largest intermediate tensor of `strongest`


@dataclass(frozen=True, eq=False)
class Conv(Weighted):
    """2-d convolution. weight (O, I/groups, kh, kw), bias (O,) or None; padding is (top and bottom, left and right)."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    has_neuron_rows: ClassVar[bool] = True

    @property
    def overhangs(self) -> bool:
        return any(self.padding)

    def linear(self, *inputs: Tensor) -> Tensor:
        return F.conv2d(inputs[0], self.weight, None, self.stride, self.padding, self.dilation, self.groups)

    def forward(self, *inputs: Tensor) -> Tensor:
        return F.conv2d(inputs[0], self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        return back_layer(self, rows, shape, cache)

    def transpose_window(self, rows: Tensor, layout: Layout, cache: Cache) -> Tensor:
        return back_window(self, rows, cache)

    def window(self, window: Window) -> Window:
        kernel = self.weight.shape[2:]
        size = [
            (n - 1) * s + d * (k - 1) + 1
            for n, s, d, k in zip(window.size, self.stride, self.dilation, kernel, strict=True)
        ]
        stride = [a * s for a, s in zip(window.stride, self.stride, strict=True)]
        offset = [a * s - p for a, s, p in zip(window.offset, self.stride, self.padding, strict=True)]
        return Window((size[0], size[1]), (stride[0], stride[1]), (offset[0], offset[1]))

    def neuron_rows(self) -> Tensor:
        """The kernel with every input channel and its holes, zero outside the group and the taps."""
        weight, (down, right) = self.weight, self.dilation
        if self.dilation != (1, 1):
            rows, columns = ((k - 1) * d + 1 for k, d in zip(weight.shape[2:], self.dilation, strict=True))
            weight = weight.new_zeros(*weight.shape[:2], rows, columns)
            weight[:, :, ::down, ::right] = self.weight
        if self.groups > 1:
            out, per, kh, kw = weight.shape
            full = weight.new_zeros(self.groups, out // self.groups, self.groups, per, kh, kw)
            own = torch.arange(self.groups, device=full.device)
            full[own, :, own] = weight.view(self.groups, out // self.groups, per, kh, kw)
            weight = full.reshape(out, self.groups * per, kh, kw)
        return weight

    def strongest(self, worth: Tensor, shape: Shape) -> Tensor:
        """For each kernel tap, the best output channel at every output position, placed where that tap reads.

        Within one tap the positions read are distinct, so placing is a maximum on a strided view: no scatter is needed.
        """
        groups, (sy, sx), (py, px), (dy, dx) = self.groups, self.stride, self.padding, self.dilation
        (channels, height, width), (_, rows, columns) = shape, self.shape
        kh, kw = self.weight.shape[2:]
        weight = self.weight.abs().reshape(groups, -1, channels // groups, kh, kw)
        outputs = worth.reshape(groups, -1, 1, rows * columns)
        step = max(1, CHUNK // (channels * rows * columns))
        out = worth.new_zeros(channels, height + 2 * py, width + 2 * px)
        for ky in range(kh):
            for kx in range(kw):
                tap = weight[..., ky, kx, None]  # (groups, O / groups, I / groups, 1)
                best = worth.new_zeros(groups, channels // groups, rows * columns)
                for o in range(0, tap.shape[1], step):
                    best = torch.maximum(best, (tap[:, o : o + step] * outputs[:, o : o + step]).amax(1))
                y, x = ky * dy, kx * dx
                place = out[:, y : y + sy * (rows - 1) + 1 : sy, x : x + sx * (columns - 1) + 1 : sx]
                torch.maximum(place, best.reshape(channels, rows, columns), out=place)
        return out[:, py : py + height, px : px + width]

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        (top, left), (height, width) = self.padding, self.weight.shape[2:]
        return writer.operator(
            "Conv",
            [*inputs, *self._onnx_constants(writer, name)],
            name,
            kernel_shape=[height, width],
            strides=list(self.stride),
            pads=[top, left, top, left],
            dilations=list(self.dilation),
            group=self.groups,
        )
