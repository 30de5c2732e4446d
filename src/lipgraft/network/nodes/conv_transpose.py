"""Transposed convolutions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.activations.curve import OnnxWriter
from lipgraft.network.nodes.node import Cache, Shape, Weighted


@dataclass(frozen=True, eq=False)
class ConvTranspose(Weighted):
    """2-d transposed convolution. weight (I, O/groups, kh, kw), bias (O,) or None.

    Output place i * stride + tap * dilation - padding gets what the tap makes of input place i. fill: rows and columns
    added at the far ends (output_padding in PyTorch and ONNX), which get the bias alone or a tap that reaches so far.
    Its rows live on whole layers: the windows of neighbouring outputs do not move in step.
    """

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    fill: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def linear(self, *inputs: Tensor) -> Tensor:
        return self._apply(inputs[0], None)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._apply(inputs[0], self.bias)

    def _apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv_transpose2d(
            x, self.weight, bias, self.stride, self.padding, self.fill, self.groups, self.dilation
        )

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        """The convolution with the same weight; it may look at more places than the input has."""
        flat = rows.reshape(-1, *self.shape)
        out = F.conv2d(flat, self.weight, None, self.stride, self.padding, self.dilation, self.groups)
        return out[..., : shape[1], : shape[2]].reshape(*self._lead(rows), *shape)

    def strongest(self, worth: Tensor, shape: Shape) -> Tensor:
        """For each kernel tap, the best output channel at the place that the tap writes to."""
        (sy, sx), (py, px), (dy, dx) = self.stride, self.padding, self.dilation
        (channels, height, width), (kh, kw) = shape, self.weight.shape[2:]
        weight = self.weight.abs().reshape(self.groups, channels // self.groups, -1, 1, 1, kh, kw)
        below = (height - 1) * sy + (kh - 1) * dy + 1 - py - self.shape[1]
        right = (width - 1) * sx + (kw - 1) * dx + 1 - px - self.shape[2]
        places = F.pad(worth, (px, max(right, 0), py, max(below, 0)))
        best = worth.new_zeros(shape)
        for ky in range(kh):
            for kx in range(kw):
                y, x = ky * dy, kx * dx
                seen = places[:, y : y + (height - 1) * sy + 1 : sy, x : x + (width - 1) * sx + 1 : sx]
                outputs = seen.reshape(self.groups, 1, -1, height, width)
                best = torch.maximum(best, (weight[..., ky, kx] * outputs).amax(2).reshape(shape))
        return best

    def scaled(self, scale: Tensor, shift: Tensor) -> ConvTranspose | None:
        """The weight's output channels are its second axis, group by group."""
        if self.groups > 1:
            return None
        weight = self.weight * scale.reshape(1, -1, 1, 1)
        bias = shift.clone() if self.bias is None else scale * self.bias + shift
        return replace(self, weight=weight, bias=bias)

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        (top, left), (height, width) = self.padding, self.weight.shape[2:]
        return writer.operator(
            "ConvTranspose",
            [*inputs, *self._onnx_constants(writer, name)],
            name,
            kernel_shape=[height, width],
            strides=list(self.stride),
            pads=[top, left, top, left],
            output_padding=list(self.fill),
            dilations=list(self.dilation),
            group=self.groups,
        )
