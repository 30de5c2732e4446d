"""An ONNX graph under construction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipgraft.interop.optional import need
from lipgraft.version import __version__

OPSET, IR_VERSION = 13, 8  # old enough for every verifier, new enough for every operator


class OnnxWriter:
    """Operators with one result each, named like the result, in one type; the batch axis is open."""

    input = "input"
    output = "output"

    def __init__(self, input_shape: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        self.input_shape, self.dtype = tuple(input_shape), dtype
        self._helper, self._numpy = need("onnx.helper"), need("onnx.numpy_helper")
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._names = {self.input, self.output}

    def unique(self, name: str) -> str:
        """A name of letters, digits and underscores that is not taken; some readers make attributes of names."""
        base = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "node"
        free, number = base, 2
        while free in self._names:
            free, number = f"{base}_{number}", number + 1
        self._names.add(free)
        return free

    def constant(self, name: str, tensor: Tensor) -> str:
        tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        array = tensor.detach().cpu().contiguous().numpy()
        if name in self._names:
            name = self.unique(name)
        self._names.add(name)
        self._constants.append(self._numpy.from_array(array, name))
        return name

    def per_neuron(self, name: str, tensor: Tensor) -> str:
        """A constant that broadcasts to one input's shape; for images with the batch axis, which some readers need."""
        return self.constant(name, tensor[None] if tensor.ndim == 3 else tensor)

    def operator(self, kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Append a node; its result has the node's name."""
        self._names.add(name)
        self._nodes.append(self._helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def finish(self, result: str, output_shape: Sequence[int]) -> bytes:
        """The serialised model, whose output is the tensor `result`."""
        if result == self.input:
            result = self.operator("Identity", [self.input], self.unique("same"))
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [self.output if name == result else name for name in names]
        helper, types = self._helper, need("onnx").TensorProto
        kind = types.DOUBLE if self.dtype == torch.float64 else types.FLOAT
        graph = helper.make_graph(
            self._nodes,
            "lipgraft",
            [helper.make_tensor_value_info(self.input, kind, ["batch", *self.input_shape])],
            [helper.make_tensor_value_info(self.output, kind, ["batch", *output_shape])],
            self._constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="lipgraft",
            producer_version=__version__,
        )
        need("onnx.checker").check_model(model)
        data: bytes = model.SerializeToString()
        return data
