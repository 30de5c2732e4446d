"""`export_onnx`: any traced network, grafted or plain, in plain ONNX operators. Each node writes its own."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import nn

from lipgraft.errors import NumericalError, SettingsError
from lipgraft.files import atomic_write_bytes
from lipgraft.inputs import shape_of_one
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.writer import OnnxWriter
from lipgraft.network import (
    Network,
    call,
    evaluated,
    evenly_padded,
    full_precision,
    known_input_shape,
    like,
    trace,
)

TOLERANCE = 1e-5


def export_onnx(
    model: nn.Module | Network,
    path: str | os.PathLike[str],
    input_shape: Sequence[int] | None = None,
    *,
    check: bool = True,
) -> Network:
    """Write a network as an .onnx file (opset 13, float32, any batch size). Returns the graph that was written.

    Padding that differs from side to side becomes even, with zeros in the kernel, as few verifiers know it otherwise.

    input_shape: of one input, without the batch axis; a built or imported model knows its own. check: compare the file
    with the model, through onnxruntime, on random inputs.
    """
    network = model if isinstance(model, Network) else _traced(model, input_shape)
    network = evenly_padded(network.to(dtype=torch.float32, device="cpu"))
    atomic_write_bytes(path, serialised(network))
    if check and isinstance(model, nn.Module):
        _check(model, network.input_shape, OnnxRuntime(path))
    return network


def _traced(model: nn.Module, input_shape: Sequence[int] | None) -> Network:
    return trace(model, shape_of(model) if input_shape is None else shape_of_one(input_shape), products=True)


def serialised(network: Network, dtype: torch.dtype = torch.float32) -> bytes:
    """The graph as the bytes of an .onnx file, the same for the same graph."""
    writer = OnnxWriter(network.input_shape, dtype)
    names = [writer.input]
    for node in network.nodes[1:]:
        names.append(node.onnx(writer, [names[i] for i in node.inputs], writer.unique(node.name)))
    return writer.finish(names[network.output], network.output_shape)


def shape_of(model: nn.Module) -> tuple[int, ...]:
    """The input shape that a model knows."""
    shape = known_input_shape(model)
    if shape is None:
        raise SettingsError("the model does not say what inputs it takes; give input_shape.")
    return shape


@torch.no_grad()
def _check(model: nn.Module, input_shape: Sequence[int], runtime: OnnxRuntime) -> None:
    x = torch.rand(4, *input_shape, generator=torch.Generator().manual_seed(0))
    with evaluated(model), full_precision():
        expected = call(model, x.to(like(model, x))).cpu().to(torch.float32)
    worst = float((runtime(x) - expected).abs().nan_to_num(nan=torch.inf).max())
    if worst > TOLERANCE * max(1.0, float(expected.abs().nan_to_num(nan=0.0).max())):
        raise NumericalError(
            f"{runtime.file.path}: onnxruntime differs from the model by {worst:.3g} on random inputs; do not use it."
        )
