"""From the nodes of an ONNX file to layers.

Shapes are those that the file has with a batch of one, so that files with and without a batch axis are the same thing
here: a layer's result holds the numbers of one ONNX tensor per row, in the same order, and changes of shape are only
remembered until some layer needs a particular one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipgraft.errors import UnsupportedOperationError
from lipgraft.interop.clock import check_time
from lipgraft.interop.formulas import recognised
from lipgraft.interop.module import INPUT, Moved, OnnxNetwork, Shift, Step, View
from lipgraft.interop.onnx_file import OnnxFile, Shape
from lipgraft.interop.optional import need
from lipgraft.network.lowering.remedies import remedy

_EXAMPLES = 2
_EMPTY = OnnxNetwork((), {}, ())  # its attributes are no names for layers
_TYPE = "number_type"
# What onnx's reference evaluator raises where a node's parts do not fit.
_FOLDING_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)

RANDOM = ("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Bernoulli", "Multinomial")


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that depends on the input. layer: the one that computes it; shape: the tensor's shape in the file.

    example: (2, *shape of the layer's result for one input), to find shapes by running layers.
    """

    layer: str
    shape: Shape
    example: Tensor

    @property
    def laid(self) -> Shape:
        """The shape of the layer's result, without the batch axis."""
        return tuple(self.example.shape[1:])


Operand = Value | Tensor | None
Handler = Callable[["Call"], Operand | tuple[Operand, ...]]
"""Answers with the node's first result, or with all of them."""
OPERATORS: dict[str, Handler] = {}


def imports(*names: str) -> Callable[[Handler], Handler]:
    """Register the handler of these ONNX operators."""

    def register(handler: Handler) -> Handler:
        OPERATORS.update(dict.fromkeys(names, handler))
        return handler

    return register


class Call:
    """One node of the file, while it is being converted: its attributes and inputs, and ways to answer."""

    def __init__(self, importer: Importer, node: Any, inputs: Sequence[Operand]) -> None:
        self.importer, self.node, self.inputs = importer, node, tuple(inputs)
        get = need("onnx.helper").get_attribute_value
        self.attributes: dict[str, Any] = {a.name: get(a) for a in node.attribute}
        self.opset = importer.file.opset

    def attribute(self, name: str, default: Any = None) -> Any:
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def value(self, index: int = 0) -> Value:
        """An input that must depend on the network's input."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(value, Value):
            raise self.unsupported(f"its input {index} is a constant where a result of the network is expected")
        return value

    def constant(self, index: int) -> Tensor | None:
        """An input that must be constant, or None where it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, Value):
            raise self.unsupported(f"its input {index} depends on the network's input where a constant is expected")
        return value

    def integers(self, name: str, index: int) -> list[int] | None:
        """Integers from an attribute (older opsets) or from a constant input (newer ones)."""
        if name in self.attributes:
            return [int(n) for n in self.attributes[name]]
        given = self.constant(index)
        return None if given is None else [int(n) for n in given.flatten().tolist()]

    def numbers(self, tensor: Tensor) -> Tensor:
        """A constant in the network's dtype, which must hold it exactly: what is proved is about the file's numbers."""
        held = tensor.to(self.importer.dtype)
        if not bool(((held.to(tensor.dtype) == tensor) | tensor.isnan()).all()):
            own = str(tensor.dtype).removeprefix("torch.")
            raise self.unsupported(
                f"a constant of type {own} has numbers that {self.importer.file.dtype}, the type of the network's "
                f"input, cannot hold; export the network with an input of {own}"
            )
        return held

    def unsupported(self, why: str) -> UnsupportedOperationError:
        name, operator = self.node.name or ", ".join(self.node.output), self.node.op_type
        return UnsupportedOperationError(
            f"{self.importer.file.path}: the ONNX operator {operator} of node {name!r} is not supported: "
            f"{why.removesuffix('.')}."
        )

    def emit(self, layer: nn.Module, *inputs: Value, shape: Shape | None = None) -> Value:
        """Append a layer. shape: of the result in the file; by default a batch of one and the layer's own."""
        try:
            return self.importer.emit(layer, inputs, shape, self.node)
        except RuntimeError as error:
            raise self.unsupported(f"its parts do not fit together ({error})") from None

    def laid_out(self, value: Value, shape: Shape) -> Value:
        """The same numbers, with this shape for a row of the layer's result."""
        if value.laid == shape:
            return value
        return self.emit(View(shape), value, shape=value.shape)

    def reshaped(self, value: Value, shape: Shape) -> Value:
        """The value under another shape in the file; no layer is needed."""
        if math.prod(shape) != math.prod(value.shape):
            raise self.unsupported(f"it turns shape {value.shape} into {shape}")
        return replace(value, shape=shape)

    def moved(self, value: Value, places: Tensor) -> Value:
        """The numbers at these places of the flat value, -1 for zero. places: of the result's shape in the file."""
        shape = tuple(places.shape)
        if places.numel() == 0:
            raise self.unsupported(f"its result has no numbers: shape {shape}")
        if torch.equal(places.flatten(), torch.arange(math.prod(value.shape))):
            return self.reshaped(value, shape)
        row = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape or (1,)
        return self.emit(Moved(places.flatten().contiguous(), row), value, shape=shape)

    def image(self, value: Value) -> Value:
        """A value of shape (1, channels, rows, columns), its rows laid out as images."""
        if len(value.shape) != 4 or value.shape[0] != 1:
            raise self.unsupported(f"it needs one image (1, channels, rows, columns), and gets shape {value.shape}")
        return self.laid_out(value, value.shape[1:])


class Importer:
    """Walks the nodes of a file in order. deadline: by time.monotonic; after it, OutOfTime is raised.

    drop_softmax: a Softmax at the end is left out. It is monotone: the order of the outputs stays as it is.
    """

    def __init__(self, file: OnnxFile, deadline: float = math.inf, *, drop_softmax: bool = False) -> None:
        self.file, self.deadline, self.drop_softmax = file, deadline, drop_softmax
        self.dropped: str | None = None
        self.dtype = getattr(torch, file.dtype)
        self.layers: dict[str, nn.Module] = {}
        self.steps: list[Step] = []
        self.known: dict[str, Operand] = {"": None}
        self.known |= {name: _tensor(array) for name, array in file.constants().items()}
        self.nodes = recognised(file.model.graph.node, file.constants(), [file.output_name], deadline)
        self.uses = Counter(name for node in self.nodes for name in node.input)
        self.uses.update([file.output_name])
        example = torch.rand(_EXAMPLES, *file.input_shape, generator=torch.Generator().manual_seed(0))
        self.known[file.input_name] = Value(INPUT, file.shape, example.to(self.dtype))

    @torch.no_grad()
    def run(self) -> OnnxNetwork:
        for node in self.nodes:
            check_time(self.deadline)
            self.convert(node)
        output = self.known[self.file.output_name]
        if not isinstance(output, Value):
            raise UnsupportedOperationError(f"{self.file.path}: the output does not depend on the input.")
        size = math.prod(output.shape)
        if output.laid != (size,) or not self.steps or self.steps[-1].layer != output.layer:
            self.emit(View((size,)), (output,), (1, size), self.file.model.graph.node[-1])
        self._fold_biases()
        network = OnnxNetwork(self.file.input_shape, self.layers, self.steps, self.dropped).eval()
        if not any(part.is_floating_point() for part in chain(network.parameters(), network.buffers())):
            # What it computes in is otherwise told by its own numbers.
            network.register_buffer(_TYPE, torch.empty(0, dtype=self.dtype), persistent=False)
        return network

    def _fold_biases(self) -> None:
        """MatMul + Add is one linear layer: the constant becomes its bias, where nothing else reads the product.

        Only the finished steps say who reads what: in the file, the same numbers go by many names.
        """
        readers = Counter(name for step in self.steps for name in step.inputs)
        kept: list[Step] = []
        merged: dict[str, str] = {}
        for step in self.steps:
            layer, source = self.layers[step.layer], step.inputs[0]
            before = self.layers.get(source) if readers[source] == 1 else None
            if isinstance(layer, Shift) and isinstance(before, nn.Linear) and before.bias is None:
                before.bias = nn.Parameter(layer.constant.expand(before.out_features).clone())
                merged[step.layer] = source
                del self.layers[step.layer]
                continue
            kept.append(Step(step.layer, tuple(merged.get(name, name) for name in step.inputs)))
        self.steps = kept

    def convert(self, node: Any) -> None:
        inputs = [self.known[name] for name in node.input]
        if not any(isinstance(value, Value) for value in inputs):
            self.known.update(self.computed(node, inputs))
            return
        call = Call(self, node, inputs)
        if node.op_type not in OPERATORS:
            raise call.unsupported(f"lipgraft does not know it. {remedy(node.op_type)}")
        answer = OPERATORS[node.op_type](call)
        results = answer if isinstance(answer, tuple) else (answer,)
        self.known.update(zip(node.output, results, strict=False))
        for extra in node.output[len(results) :]:
            if self.uses[extra]:
                raise call.unsupported(f"its output {extra!r} is used, and only the first one is computed")

    def emit(self, layer: nn.Module, inputs: Sequence[Value], shape: Shape | None, node: Any) -> Value:
        example = layer.eval()(*(value.example for value in inputs))
        name = self._name(layer, node)
        self.layers[name] = layer
        self.steps.append(Step(name, tuple(value.layer for value in inputs)))
        return Value(name, shape or (1, *example.shape[1:]), example)

    def _name(self, layer: nn.Module, node: Any) -> str:
        """An attribute name, after the node's name; a layer that only prepares the node's own says what it is."""
        base = re.sub(r"\W+", "_", node.name, flags=re.ASCII).strip("_") or f"{node.op_type.lower()}_{len(self.layers)}"
        if not base[0].isalpha():
            base = f"{node.op_type.lower()}_{base}"
        if isinstance(layer, View | nn.ZeroPad2d) and node.op_type != "Pad":
            base = f"{base}_{'view' if isinstance(layer, View) else 'pad'}"
        name, number = base, 2
        while name in self.layers or name == _TYPE or hasattr(_EMPTY, name):
            name, number = f"{base}_{number}", number + 1
        return name

    def computed(self, node: Any, inputs: Sequence[Operand]) -> dict[str, Operand]:
        """The results of a node from inputs that are all constant."""
        if _random(node, inputs):
            raise Call(self, node, inputs).unsupported("its results are random; a proof would be about one draw alone")
        helper = need("onnx.helper")
        given = zip(node.input, inputs, strict=True)
        feeds = {name: value.numpy() for name, value in given if isinstance(value, Tensor)}
        ends = [[helper.make_empty_tensor_value_info(name) for name in names] for names in (feeds, node.output)]
        opset = helper.make_opsetid("", self.file.opset)  # a node alone would mean the newest one
        model = helper.make_model(helper.make_graph([node], "constant", *ends), opset_imports=[opset])
        try:
            results = need("onnx.reference").ReferenceEvaluator(model).run(None, feeds)
        except _FOLDING_ERRORS as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise Call(self, node, inputs).unsupported(f"it cannot be computed ({reason})") from None
        return {name: _tensor(np.asarray(result)) for name, result in zip(node.output, results, strict=True)}


def _random(node: Any, inputs: Sequence[Operand] = ()) -> bool:
    """Whether a node, or one inside of it, draws numbers. inputs: where they are known."""
    if node.op_type == "Dropout":
        training = inputs[2] if len(inputs) > 2 else None
        told = len(node.input) > 2 and bool(node.input[2])
        return told and not (isinstance(training, Tensor) and not bool(training.any()))
    inner = (graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs))
    return node.op_type in RANDOM or any(_random(part) for graph in inner for part in graph.node)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array))  # a copy: arrays from a file are read-only
