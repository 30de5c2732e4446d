"""Reading an ONNX file: one input, one output, constants, nodes in order."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lipgraft.errors import CheckpointError, UnsupportedOperationError
from lipgraft.interop.optional import need
from lipgraft.interop.packed import is_packed, read_packed

OLDEST_OPSET = 7  # onnxruntime promises nothing for older ones
LARGEST = (1 << 31) - 1  # bytes of a protobuf; larger weights stand in files of their own
MOST_INPUTS = 1 << 28
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
        graph = self.model.graph
        return {
            **{tensor.name: self._array(tensor) for tensor in graph.initializer},
            **{sparse.values.name: self._dense(sparse) for sparse in graph.sparse_initializer},
        }

    def _array(self, tensor: Any) -> np.ndarray:
        try:
            array: np.ndarray = need("onnx.numpy_helper").to_array(tensor, str(self.path.parent))
        except (OSError, ValueError, TypeError, need("onnx.checker").ValidationError) as error:
            raise CheckpointError(
                f"{self.path}: the constant {tensor.name!r} cannot be read: {_one_line(error)}."
            ) from None
        return array

    def _dense(self, sparse: Any) -> np.ndarray:
        """A sparse initialiser with its zeros. Indices are places in the flat array, or one coordinate per axis."""
        values, indices = self._array(sparse.values), self._array(sparse.indices)
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        try:
            places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
            dense.reshape(-1)[places] = values
        except (ValueError, IndexError) as error:
            raise CheckpointError(
                f"{self.path}: the sparse constant {sparse.values.name!r} is damaged: {_one_line(error)}."
            ) from None
        return dense


def fingerprint_onnx(path: str | os.PathLike[str]) -> str:
    """SHA-256, as text, of a whole ONNX model: the file, and every file with weights that it refers to."""
    file = Path(path)
    data = read_packed(file, LARGEST, CheckpointError)
    places = {entry.value for tensor in _tensors(_decoded(file, data)) for entry in tensor.external_data
              if entry.key == "location"}  # fmt: skip
    digest = hashlib.sha256(hashlib.sha256(data).digest())
    for place in sorted(places):
        try:
            with (file.parent / place).open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file}: its weights in {place!r} cannot be read: {_one_line(error)}.") from None
    return digest.hexdigest()


def _messages(message: Any) -> Iterator[Any]:
    """A message and all messages inside it; tensors are not looked into, because their numbers may be many."""
    yield message
    if isinstance(message, need("onnx").TensorProto):
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(part)


def _tensors(model: Any) -> Iterator[Any]:
    kind = need("onnx").TensorProto
    return (message for message in _messages(model) if isinstance(message, kind))


def _is_text(message: Any) -> bool:
    """Whether all names in a message are text: protobuf hands out damaged ones as bytes."""
    if isinstance(message, need("onnx").TensorProto):
        return isinstance(message.name, str)
    texts = (value for field, value in message.ListFields() if field.type == field.TYPE_STRING)
    return all(isinstance(part, str) for text in texts for part in ([text] if isinstance(text, bytes) else text))


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
    stored = {tensor.name for tensor in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
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
    data = read_packed(file, LARGEST, CheckpointError)
    model = _decoded(file, data)
    if not model.graph.node:
        raise CheckpointError(f"{file} is not an ONNX model, or it is truncated: it has no nodes.")
    try:
        need("onnx.external_data_helper").load_external_data_for_model(model, str(file.parent))
    except (OSError, ValueError, TypeError, need("onnx.checker").ValidationError) as error:
        raise CheckpointError(f"{file}: its weights in other files cannot be read: {_one_line(error)}.") from None
    return is_packed(file), model


def _decoded(file: Path, data: bytes) -> Any:
    """The model as the file has it, without the weights of other files."""
    try:
        model = need("onnx").load_model_from_string(data)
    except need("google.protobuf.message").DecodeError:
        raise CheckpointError(f"{file} is not an ONNX model, or it is truncated; restore it from a copy.") from None
    if not all(map(_is_text, _messages(model))):
        raise CheckpointError(f"{file} is damaged: it contains a name that is not text; restore it from a copy.")
    return model


def _one_line(error: Exception) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error)).split()).rstrip(".")


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
    if math.prod(shape) > MOST_INPUTS:
        raise UnsupportedOperationError(f"{file}: the input {value.name!r} has {math.prod(shape)} numbers, too many.")
    return shape, batched, free


def _dtype(value: Any, file: Path) -> str:
    proto = need("onnx").TensorProto
    kinds = {proto.FLOAT: "float32", proto.DOUBLE: "float64"}
    kind = value.type.tensor_type.elem_type
    if kind not in kinds:
        name = proto.DataType.Name(kind) if kind in proto.DataType.values() else f"of the unknown type {kind}"
        raise UnsupportedOperationError(
            f"{file}: the input {value.name!r} is {name}; only FLOAT and DOUBLE are supported."
        )
    return kinds[kind]
