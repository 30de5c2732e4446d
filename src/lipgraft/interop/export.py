"""`export_onnx`: any traced network, grafted or plain, in plain ONNX operators.

A grafted neuron is written so that other verifiers see a line: h = act(n z + (n - 1)) + (a z + b), with n = 0 where the
neuron is grafted and 1 elsewhere, and a, b zero where n = 1. Its activation sees the constant -1, so nobody counts,
relaxes or branches on it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lipgraft.errors import NumericalError, SettingsError
from lipgraft.files import atomic_write_bytes
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.writer import OnnxWriter
from lipgraft.network import Activation, Add, Conv, Linear, Network, Node, Pad, Reshape, Scale, full_precision, trace

TOLERANCE = 1e-5


def export_onnx(
    model: nn.Module | Network,
    path: str | os.PathLike[str],
    input_shape: Sequence[int] | None = None,
    *,
    check: bool = True,
) -> Network:
    """Write a network as an .onnx file (opset 13, float32, any batch size). Returns the graph that was written.

    input_shape: of one input, without the batch axis; a built or imported model knows its own. check: compare the file
    with the model, through onnxruntime, on random inputs.
    """
    network = model if isinstance(model, Network) else trace(model, input_shape or shape_of(model))
    network = network.to(dtype=torch.float32, device="cpu")
    writer = OnnxWriter(network.input_shape)
    names = [writer.input]
    for node in network.nodes[1:]:
        names.append(_write(writer, node, [names[i] for i in node.inputs]))
    atomic_write_bytes(path, writer.finish(names[network.output], network.output_shape))
    if check and isinstance(model, nn.Module):
        _check(model, network.input_shape, OnnxRuntime(path))
    return network


def shape_of(model: nn.Module) -> tuple[int, ...]:
    """The input shape that a model knows."""
    shape = getattr(model, "input_shape", None) or getattr(getattr(model, "spec", None), "input_shape", None)
    if shape is None:
        raise SettingsError("the model does not say what inputs it takes; give input_shape.")
    return tuple(shape)


def _write(writer: OnnxWriter, node: Node, inputs: list[str]) -> str:
    """The operators of one node of the graph; returns the name of the result."""
    x, name = inputs[0], writer.unique(node.name)
    match node:
        case Conv():
            (top, left), (height, width) = node.padding, node.weight.shape[2:]
            parts = {"weight": node.weight} | ({} if node.bias is None else {"bias": node.bias})
            return writer.operator(
                "Conv",
                [x, *(writer.constant(f"{name}_{part}", tensor) for part, tensor in parts.items())],
                name,
                kernel_shape=[height, width],
                strides=list(node.stride),
                pads=[top, left, top, left],
                dilations=list(node.dilation),
                group=node.groups,
            )
        case Linear():
            parts = {"weight": node.weight} | ({} if node.bias is None else {"bias": node.bias})
            constants = [writer.constant(f"{name}_{part}", tensor) for part, tensor in parts.items()]
            return writer.operator("Gemm", [x, *constants], name, transB=1)
        case Add():
            return writer.operator("Add", inputs, name)
        case Scale():
            return _line(writer, x, name, node.scale, node.shift)
        case Pad():
            left, right, top, bottom = node.pads
            sides = torch.tensor([0, 0, top, left, 0, 0, bottom, right])
            return writer.operator("Pad", [x, writer.constant(f"{name}_pads", sides)], name, mode="constant")
        case Reshape():
            if len(node.shape) == 1:
                return writer.operator("Flatten", [x], name, axis=1)
            return writer.operator(
                "Reshape", [x, writer.constant(f"{name}_shape", torch.tensor([-1, *node.shape]))], name
            )
        case Activation():
            return _activation(writer, node, x, name)
    raise SettingsError(f"node {node.name!r} of type {type(node).__name__} cannot be exported.")


def _activation(writer: OnnxWriter, node: Activation, z: str, name: str) -> str:
    if node.graft is None:
        return node.curve.write_onnx(writer, z, name)
    mask, zero = node.graft.mask, torch.zeros_like(node.graft.gamma)
    n = 1.0 - mask.to(zero.dtype)
    # The activation of a grafted neuron is constant, but only ReLU's is zero: the line takes the rest back.
    constant = float(node.curve(torch.tensor(-1.0)))
    a = torch.where(mask, node.graft.gamma, zero)
    b = torch.where(mask, node.graft.omega - constant, zero)
    # Some verifiers can only branch on a ReLU that stands right behind an Add.
    kept = writer.operator("Mul", [z, writer.constant(f"{name}_n", n)], f"{name}_kept")
    sees = writer.operator("Add", [kept, writer.constant(f"{name}_n1", n - 1.0)], f"{name}_sees")
    curve = node.curve.write_onnx(writer, sees, name)
    sloped = writer.operator("Mul", [z, writer.constant(f"{name}_a", a)], f"{name}_sloped")
    line = writer.operator("Add", [sloped, writer.constant(f"{name}_b", b)], f"{name}_line")
    return writer.operator("Add", [curve, line], f"{name}_grafted")


def _line(writer: OnnxWriter, x: str, name: str, scale: Tensor, shift: Tensor) -> str:
    """scale * x + shift, without the part that does nothing."""
    multiplies, adds = bool((scale != 1).any()), bool((shift != 0).any())
    if multiplies or not adds:
        x = writer.operator("Mul", [x, writer.constant(f"{name}_scale", scale)], f"{name}_scaled" if adds else name)
    return writer.operator("Add", [x, writer.constant(f"{name}_shift", shift)], name) if adds else x


@torch.no_grad()
def _check(model: nn.Module, input_shape: Sequence[int], runtime: OnnxRuntime) -> None:
    x = torch.rand(4, *input_shape, generator=torch.Generator().manual_seed(0))
    like = next(model.parameters(), x)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with full_precision():
            expected = model(x.to(like)).cpu().to(torch.float32)
    finally:
        for module in training:
            module.training = True
    worst = float((runtime(x) - expected).abs().nan_to_num(nan=torch.inf).max())
    if worst > TOLERANCE * max(1.0, float(expected.abs().nan_to_num(nan=0.0).max())):
        raise NumericalError(
            f"{runtime.file.path}: onnxruntime differs from the model by {worst:.3g} on random inputs; do not use it."
        )
