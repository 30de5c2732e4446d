"""An imported network as an nn.Module: a list of layers, each reading the results of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.network import Builder, Planar, Ref, lowers_module

INPUT = ""
"""The name under which steps read the network's input; no layer has it."""


@dataclass(frozen=True)
class Step:
    """Call the layer of this name with the results of the layers named in inputs."""

    layer: str
    inputs: tuple[str, ...]


class OnnxNetwork(nn.Module):
    """x: (B, *input_shape) -> (B, outputs). Layers are attributes, named after the file's nodes.

    dropped: the monotone operator at the file's end, Softmax or LogSoftmax, that the module leaves out; mostly None.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        layers: Mapping[str, nn.Module],
        steps: Sequence[Step],
        dropped: str | None = None,
    ) -> None:
        super().__init__()
        self.dropped = dropped
        self.input_shape = tuple(input_shape)
        self.steps = tuple(steps)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def extra_repr(self) -> str:
        """The wiring: the same layers, put together otherwise, are another network."""
        calls = (f"{step.layer}({', '.join(name or 'input' for name in step.inputs)})" for step in self.steps)
        return f"input_shape={self.input_shape}, steps=[{', '.join(calls)}]"

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, *input_shape) -> (B, outputs)."""
        values = {INPUT: x}
        for step in self.steps:
            x = getattr(self, step.layer)(*(values[name] for name in step.inputs))
            values[step.layer] = x
        return x


class View(nn.Module):
    """The same numbers in another shape. x: (B, ...) -> (B, *shape)."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def extra_repr(self) -> str:
        return f"shape={self.shape}"

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.shape)


class Moved(nn.Module):
    """Numbers of the input in other places, or several times, or between zeros. x: (B, ...) -> (B, *shape).

    index: places of the flat input, in the order of the flat result; -1 for zero.
    """

    index: Tensor

    def __init__(self, index: Tensor, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.register_buffer("index", index)

    def extra_repr(self) -> str:
        return f"shape={self.shape}"

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x.flatten(1), (1, 0)).index_select(1, self.index + 1).view(-1, *self.shape)


@lowers_module(Moved)
def moved(build: Builder, module: Moved, input: Ref) -> Ref:
    return replace(build.pick(input, module.index.cpu(), module.shape), memory=object())


class Sum(nn.Module):
    """The sum of two results of the same shape."""

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return x + other


class Difference(nn.Module):
    """The difference of two results of the same shape."""

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return x - other


class Applied(nn.Module):
    """A node that is neither affine nor an activation, of results of the same shape. fields: the node's own."""

    def __init__(self, kind: type[Planar], **fields: Any) -> None:
        super().__init__()
        self.kind, self.fields = kind, fields

    def extra_repr(self) -> str:
        return ", ".join([self.kind.__name__, *(f"{name}={value}" for name, value in self.fields.items())])

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.kind("", (), (), **self.fields).forward(*inputs)


@lowers_module(Applied)
def applied(build: Builder, module: Applied, *inputs: Ref) -> Ref:
    return build.add(module.kind, *inputs, **module.fields)


class _Constant(nn.Module):
    constant: Tensor

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.register_buffer("constant", constant)


class Shift(_Constant):
    """x + constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.constant


class Unshift(_Constant):
    """x - constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x - self.constant


class Multiply(_Constant):
    """x * constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.constant


class Divide(_Constant):
    """x / constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x / self.constant
