"""Element-wise activations: all that `lipgraft.activations` knows."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.activations import ONNX
from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.operators.arithmetic import clipped

FAR = 1e38  # older opsets write the largest float32 where they mean no limit


@imports(*ONNX)
def activation(call: Call) -> Value:
    value = call.value()
    if call.node.op_type == "Clip":
        low, high = (_end(call, name, i) for i, name in ((1, "min"), (2, "max")))
        if low is None or high is None:
            return clipped(call, value, low, high)
    try:
        curve = ONNX[call.node.op_type].of_onnx(call)
    except ValueError as error:
        raise call.unsupported(str(error)) from None
    return call.emit(curve.module(), value, shape=value.shape)


def _end(call: Call, name: str, index: int) -> Tensor | None:
    """A limit of Clip: an attribute (older opsets) or an input; None where it is missing or infinite.

    One that the network's type would round is refused.
    """
    given = call.attribute(name, call.constant(index))
    end = None if given is None else float(given)
    if end is None or not abs(end) < FAR:
        return None
    return call.numbers(torch.tensor(end, dtype=torch.float64))
