"""Reading an ONNX file: one input, one output, constants, nodes in order."""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lipgraft.errors import CheckpointError, UnsupportedOperationError
from lipgraft.interop.optional import need

OLDEST_OPSET = 7  # onnxruntime promises nothing for older ones
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """packed: whether the file is a gzip. model: the ModelProto.

    shape: of the input as the graph sees it, a batch axis counted as 1.
    batched: whether the first axis of `shape` is a batch axis. free_batch: whether that axis takes any size.
    """

    path: Path
    packed: bool
    model: Any
    opset: int
    input_name: str
    output_name: str
    shape: Shape
    batched: bool
    free_batch: bool
    dtype: str

    @property
    def input_shape(self) -> Shape:
        """Of one input, without the batch axis."""
        return self.shape[1:] if self.batched else self.shape

    def constants(self) -> dict[str, np.ndarray]:
        """The initialisers by name."""
        to_array = need("onnx.numpy_helper").to_array
        folder = str(self.path.parent)  # of tensors that are stored outside the file
        return {tensor.name: to_array(tensor, folder) for tensor in self.model.graph.initializer}


def read_onnx(path: str | os.PathLike[str]) -> OnnxFile:
    """Read an .onnx file, or a gzip of one. Whether its nodes fit together is for onnxruntime to say."""
    file = Path(path)
    packed, model = _parsed(file)
    graph = model.graph
    opset = max((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < OLDEST_OPSET:
        raise UnsupportedOperationError(
            f"{file} uses ONNX opset {opset}, and {OLDEST_OPSET} is the oldest supported; convert it with "
            "onnx.version_converter."
        )
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise UnsupportedOperationError(
            f"{file} has {len(inputs)} inputs and {len(graph.output)} outputs; a network has one of each."
        )
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise UnsupportedOperationError(
                f"{file}: the operator {node.domain}.{node.op_type} of node {node.name!r} is not standard ONNX."
            )
    shape, batched, free = _input_shape(inputs[0], file)
    return OnnxFile(
        path=file,
        packed=packed,
        model=model,
        opset=opset,
        input_name=inputs[0].name,
        output_name=graph.output[0].name,
        shape=shape,
        batched=batched,
        free_batch=free,
        dtype=_dtype(inputs[0], file),
    )


def _parsed(file: Path) -> tuple[bool, Any]:
    onnx, decode_error = need("onnx"), need("google.protobuf.message").DecodeError
    try:
        with file.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        model = onnx.load_model_from_string(gzip.decompress(file.read_bytes())) if packed else onnx.load(str(file))
        if not model.graph.node:
            raise CheckpointError(f"{file} is not an ONNX model, or it is truncated: it has no nodes.")
    except (OSError, EOFError, zlib.error) as error:
        raise CheckpointError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    except decode_error:
        raise CheckpointError(f"{file} is not an ONNX model, or it is truncated; restore it from a copy.") from None
    return packed, model


def _input_shape(value: Any, file: Path) -> tuple[Shape, bool, bool]:
    """(shape with a batch of 1, has a batch axis, takes any batch).

    The first of several axes is a batch axis if its size is 1 or open. Otherwise the network takes one input as it is.
    """
    dims = list(value.type.tensor_type.shape.dim)
    sizes = [int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims]
    batched = len(sizes) > 1 and sizes[0] in (1, None)
    free = batched and sizes[0] is None
    if free:
        sizes[0] = 1
    shape = tuple(n for n in sizes if n is not None)
    if not sizes or len(shape) != len(sizes):
        raise UnsupportedOperationError(
            f"{file}: the input {value.name!r} has no fixed size; export it with fixed sizes of all axes but the batch."
        )
    return shape, batched, free


def _dtype(value: Any, file: Path) -> str:
    proto = need("onnx").TensorProto
    kinds = {proto.FLOAT: "float32", proto.DOUBLE: "float64"}
    kind = value.type.tensor_type.elem_type
    if kind not in kinds:
        raise UnsupportedOperationError(
            f"{file}: the input {value.name!r} is {proto.DataType.Name(kind)}; only FLOAT and DOUBLE are supported."
        )
    return kinds[kind]
