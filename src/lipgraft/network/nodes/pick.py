"""Numbers that move: transposed, sliced, gathered, repeated, put between zeros."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.activations.curve import Interval, OnnxWriter
from lipgraft.network.nodes.node import Affine, Cache, Shape


@dataclass(frozen=True, eq=False)
class Pick(Affine):
    """Each output is one number of the input, or zero. Its rows live on whole layers.

    index: one place of the flat input per output, in the order of the flat output, int64; -1 for zero. copies: how
    often one input is picked at most.
    """

    index: Tensor
    copies: int

    def linear(self, *inputs: Tensor) -> Tensor:
        # The zero in front is what -1 picks.
        return F.pad(inputs[0].flatten(1), (1, 0)).index_select(1, self.index + 1).view(-1, *self.shape)

    def interval(self, *inputs: Interval) -> Interval:
        lb, ub = inputs[0]
        return self.linear(lb), self.linear(ub)

    @property
    def terms(self) -> int:
        """Going back, an input adds up what all of its copies get."""
        return self.copies + 1

    def transpose(self, rows: Tensor, shape: Shape, cache: Cache) -> Tensor:
        lead = self._lead(rows)
        flat = rows.reshape(-1, len(self.index))
        out = flat.new_zeros(len(flat), 1 + math.prod(shape))
        return out.index_add(1, self.index + 1, flat)[:, 1:].view(*lead, *shape)

    def strongest(self, worth: Tensor, shape: Shape) -> Tensor:
        out = worth.new_zeros(1 + math.prod(shape))
        return out.scatter_reduce(0, self.index + 1, worth.flatten(), "amax")[1:].view(shape)

    def onnx(self, writer: OnnxWriter, inputs: list[str], name: str) -> str:
        """Gather from the flat input; where zeros are picked, any number times 0."""
        flat = writer.operator("Flatten", inputs, f"{name}_flat", axis=1)
        place = writer.constant(f"{name}_index", self.index.clamp(min=0))
        zeros = bool((self.index < 0).any())
        last = len(self.shape) == 1
        x = writer.operator("Gather", [flat, place], name if last and not zeros else f"{name}_gathered", axis=1)
        if zeros:
            kept = writer.constant(f"{name}_kept", (self.index >= 0).to(torch.float32))
            x = writer.operator("Mul", [x, kept], name if last else f"{name}_masked")
        if last:
            return x
        return writer.operator("Reshape", [x, writer.constant(f"{name}_shape", torch.tensor([-1, *self.shape]))], name)
