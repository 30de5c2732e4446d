"""Element-wise activations: all that `lipgraft.activations` knows."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.activations import ONNX
from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.operators.arithmetic import clipped, no_limit


@imports(*ONNX)
def activation(call: Call) -> Value:
    value = call.value()
    if call.node.op_type == "Clip":
        low, high = (_end(call, name, side) for name, side in (("min", -1), ("max", 1)))
        if low is None or high is None:
            return clipped(call, value, low, high)
    try:
        curve = ONNX[call.node.op_type].of_onnx(call)
    except ValueError as error:
        raise call.unsupported(str(error)) from None
    return call.emit(curve.module(), value, shape=value.shape)


def _end(call: Call, name: str, side: int) -> Tensor | None:
    """A limit of Clip: an attribute (older opsets) or an input; None where it is missing, or as good as infinite.

    side: -1 for the lower one, 1 for the upper one. One that the network's type would round is refused.
    """
    given = call.attribute(name, call.constant(1 if side < 0 else 2))
    if isinstance(given, Tensor) and given.numel() != 1:
        raise call.unsupported(f"its limits are single numbers, and {name!r} has shape {tuple(given.shape)}")
    end = None if given is None else float(given)
    if end is None or bool(no_limit(call, torch.tensor(side * end, dtype=torch.float64))):
        return None
    return call.numbers(torch.tensor(end, dtype=torch.float64))
