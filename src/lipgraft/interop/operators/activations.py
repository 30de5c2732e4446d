"""Element-wise activations: all that `lipgraft.activations` knows."""

from __future__ import annotations

import torch

from lipgraft.activations import ONNX
from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.operators.arithmetic import FAR, clipped


@imports(*ONNX)
def activation(call: Call) -> Value:
    value = call.value()
    if call.node.op_type == "Clip":
        ends = [_end(call, name, i) for i, name in ((-1, "min"), (1, "max"))]
        if None in ends:
            low, high = (None if end is None else torch.tensor(end, dtype=torch.float64) for end in ends)
            return clipped(call, value, low, high)
    try:
        curve = ONNX[call.node.op_type].of_onnx(call)
    except ValueError as error:
        raise call.unsupported(str(error)) from None
    return call.emit(curve.module(), value, shape=value.shape)


def _end(call: Call, name: str, side: int) -> float | None:
    """A limit of Clip: an attribute (older opsets) or an input; None where it is missing, or as good as infinite.

    side: -1 for the lower one, 1 for the upper one.
    """
    given = call.attribute(name, call.constant(1 if side < 0 else 2))
    if isinstance(given, torch.Tensor) and given.numel() != 1:
        raise call.unsupported(f"its limits are single numbers, and {name!r} has shape {tuple(given.shape)}")
    end = None if given is None else float(given)
    return None if end is not None and side * end >= FAR else end
