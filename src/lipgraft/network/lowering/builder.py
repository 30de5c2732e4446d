"""The graph under construction, and references to the values it computes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from lipgraft.activations import Curve
from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.graph import Activation, Graft, Input, Node, Pick, Reshape, Scale, Shape
from lipgraft.network.lowering.naming import unique
from lipgraft.network.lowering.remedies import remedy

_TORCH = os.path.dirname(torch.__file__)


@dataclass(frozen=True, eq=False)
class Ref:
    """A symbolic tensor: the graph node that computes it, and its value on the example batch.

    example: (batch, *shape); memory: the same object for values that share memory, or may share it, when PyTorch runs
    the model. Only names of one and the same tensor are one and the same Ref.
    """

    position: int
    example: Tensor
    memory: object = field(default_factory=object)

    @property
    def shape(self) -> Shape:
        """Without the batch axis."""
        return tuple(self.example.shape[1:])


class Builder:
    """Collects nodes while the walk goes from call to call.

    example: of the model's type. dtype: of the graph; where it is another one, nodes get copies of the model's numbers.
    foldable: positions of Scale nodes that stand for a BatchNorm.
    """

    def __init__(
        self, root: nn.Module, example: Tensor, names: Mapping[fx.Node, str], dtype: torch.dtype | None = None
    ) -> None:
        self.model_dtype = example.dtype
        self.nodes: list[Node] = []
        self.foldable: set[int] = set()
        self._names = names
        self._reserved = set(names.values())
        self._used: set[str] = set()
        self._call: fx.Node | None = None
        self._root = root
        self._example = example.to(dtype)

    def at(self, call: fx.Node) -> None:
        """From now on, nodes belong to this call."""
        self._call = call

    def input(self) -> Ref:
        """Node 0."""
        self.nodes.append(Input(self._name(""), (), tuple(self._example.shape[1:])))
        return Ref(0, self._example)

    def add(self, node_type: type[Node], /, *inputs: Ref, part: str = "", **fields: Any) -> Ref:
        """Append a node. Its shape is found by evaluating it on the example.

        part: what an auxiliary node is, for its name; the node that is the call's result has none.
        """
        fields = {name: self._converted(value) for name, value in fields.items()}
        node = node_type(self._name(part), tuple(x.position for x in inputs), fields.pop("shape", ()), **fields)
        example = node.forward(*(x.example for x in inputs))
        self.nodes.append(replace(node, shape=tuple(example.shape[1:])))
        return Ref(len(self.nodes) - 1, example)

    def scale(self, x: Ref, scale: float | Tensor, shift: float | Tensor = 0.0, *, part: str = "") -> Ref:
        """scale * x + shift; both must broadcast to x's shape (without the batch axis)."""
        return self.add(Scale, x, part=part, scale=self.tensor(x, scale), shift=self.tensor(x, shift))

    def reshape(self, x: Ref, shape: Shape, *, part: str = "") -> Ref:
        """The same numbers in another shape (without the batch axis)."""
        if shape == x.shape:
            return x
        return replace(self.add(Reshape, x, part=part, shape=shape), memory=x.memory)

    def pick(self, x: Ref, index: Tensor, shape: Shape, *, part: str = "") -> Ref:
        """The numbers of x at these places of a flat input (-1: zero), in another shape. index: on the CPU."""
        if torch.equal(index, torch.arange(x.example[0].numel())):
            return self.reshape(x, shape, part=part)
        copies = int((index + 1).bincount(minlength=2)[1:].amax())
        there = index.to(x.example.device)
        return replace(self.add(Pick, x, part=part, shape=shape, index=there, copies=copies), memory=x.memory)

    def activation(self, x: Ref, curve: Curve, graft: Graft | None = None) -> Ref:
        """An activation, with some neurons replaced by lines if a graft says so."""
        if graft is not None and not graft.mask.shape == graft.gamma.shape == graft.omega.shape == x.shape:
            raise self.unsupported(
                f"its mask, gamma and omega have shapes {tuple(graft.mask.shape)}, {tuple(graft.gamma.shape)} and "
                f"{tuple(graft.omega.shape)}, but its input has shape {x.shape}"
            )
        return self.add(Activation, x, curve=curve, graft=graft)

    def tensor(self, x: Ref, value: float | Tensor) -> Tensor:
        """A constant on x's device and of x's dtype; a tensor that already is so is returned itself, still live.

        A number that is written in the forward is rounded to the model's type, as PyTorch does.
        """
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=self.model_dtype)
        return torch.as_tensor(self._converted(value), dtype=x.example.dtype, device=x.example.device)

    def _converted(self, value: Any) -> Any:
        """Numbers of the model in the graph's type, where that is another one; everything else as it is."""
        dtype = self._example.dtype
        if isinstance(value, Graft):
            return Graft(value.mask, self._converted(value.gamma), self._converted(value.omega))
        if dtype == self.model_dtype or not isinstance(value, Tensor) or value.dtype != self.model_dtype:
            return value
        # Whether a number is trained decides how the graph is simplified, which must not depend on its type.
        return value.detach().to(dtype).requires_grad_(value.requires_grad)

    def unsupported(self, reason: str, advice: str = "") -> UnsupportedOperationError:
        """The error for the present call; it says which call, where it is written and what to do about it."""
        if not advice and self._call is not None:
            advice = remedy(_operation(self._root, self._call))
        return UnsupportedOperationError(f"{_describe(self._root, self._call)}: {reason}. {advice}".rstrip())

    def _name(self, part: str) -> str:
        assert self._call is not None
        name = self._names[self._call] + (f"_{part}" if part else "")
        if part or name in self._used:
            name = unique(name, self._used | self._reserved)
        self._used.add(name)
        return name


def _target(call: fx.Node) -> str:
    return call.target if isinstance(call.target, str) else str(getattr(call.target, "__name__", repr(call.target)))


def _operation(root: nn.Module, call: fx.Node) -> str:
    """What is called: the type of a module, the name of a function or method."""
    if call.op == "call_module":
        return type(root.get_submodule(str(call.target))).__name__
    return _target(call)


def _describe(root: nn.Module, call: fx.Node | None) -> str:
    """The call as a person would find it: its name, what it calls, file and line."""
    if call is None:
        return "the network cannot be read"
    target = _target(call)
    words = {"call_module": "module", "call_function": "function", "call_method": "method"}
    kind = words.get(call.op, call.op)
    if call.op == "call_module":
        kind += f" {_operation(root, call)}"
    return f"node {call.name!r} ({kind} {target!r}){_source_line(call)} is not supported"


def _source_line(call: fx.Node) -> str:
    """' at file.py:12 `x = self.pool(x)`': the innermost line outside PyTorch, or nothing when fx did not record it."""
    frames = re.findall(r'File "(.+?)", line (\d+), in .*\n\s*(.*)', call.stack_trace or "")
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    if not outside:
        return ""
    file, line, code = outside[-1]
    return f" at {os.path.basename(file)}:{line} `{code}`"
