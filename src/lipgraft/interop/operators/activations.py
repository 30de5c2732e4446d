"""Element-wise activations: all that `lipgraft.activations` knows."""

from __future__ import annotations

import torch

from lipgraft.activations import ONNX
from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.operators.arithmetic import clipped

FAR = 1e38  # older opsets write the largest float32 where they mean no limit


@imports(*ONNX)
def activation(call: Call) -> Value:
    value = call.value()
    if call.node.op_type == "Clip":
        ends = [_end(call, name, i) for i, name in ((1, "min"), (2, "max"))]
        if None in ends:
            return clipped(call, value, *(None if end is None else torch.tensor(end) for end in ends))
    try:
        curve = ONNX[call.node.op_type].of_onnx(call)
    except ValueError as error:
        raise call.unsupported(str(error)) from None
    return call.emit(curve.module(), value, shape=value.shape)


def _end(call: Call, name: str, index: int) -> float | None:
    """A limit of Clip: an attribute (older opsets) or an input; None where it is missing or infinite."""
    given = call.attribute(name, call.constant(index))
    if isinstance(given, torch.Tensor) and given.numel() != 1:
        raise call.unsupported(f"its limits are single numbers, and {name!r} has shape {tuple(given.shape)}")
    end = None if given is None else float(given)
    return end if end is not None and abs(end) < FAR else None
