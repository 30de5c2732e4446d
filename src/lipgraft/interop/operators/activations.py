"""Element-wise activations: all that `lipgraft.activations` knows."""

from __future__ import annotations

from lipgraft.activations import ONNX
from lipgraft.interop.importer import Call, Value, imports


@imports(*ONNX)
def activation(call: Call) -> Value:
    value = call.value()
    try:
        curve = ONNX[call.node.op_type].of_onnx(call)
    except ValueError as error:
        raise call.unsupported(str(error)) from None
    return call.emit(curve.module(), value, shape=value.shape)
