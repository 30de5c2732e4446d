"""BatchNorm, and operators that change nothing."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from lipgraft.interop.importer import Call, Value, imports

EPSILON = float(np.float32(1e-5))  # where a file gives none: attributes are float32 numbers, in float64 networks too


@imports("BatchNormalization")
def batch_normalization(call: Call) -> Value:
    value = call.value()
    if call.attribute("training_mode", 0):
        raise call.unsupported("it is in training mode")
    if not 2 <= len(value.shape) <= 4 or value.shape[0] != 1:
        raise call.unsupported(f"it needs one input (1, channels, ...), and gets shape {value.shape}")
    given = [call.constant(i) for i in range(1, 5)]
    scale, shift, mean, variance = (call.numbers(t) for t in given if t is not None)
    if any(part.ndim != 1 for part in (scale, shift, mean, variance)):  # `spatial=0` of opset 7 and 8
        raise call.unsupported("it has numbers for every place of a channel, not one for each channel")
    kind = nn.BatchNorm2d if len(value.shape) == 4 else nn.BatchNorm1d
    if len(scale) != value.shape[1]:
        raise call.unsupported(f"it has {len(scale)} channels, and gets shape {value.shape}")
    layer = kind(len(scale), eps=float(call.attribute("epsilon", EPSILON)), dtype=call.importer.dtype)
    state: dict[str, Tensor] = {"weight": scale, "bias": shift, "running_mean": mean, "running_var": variance}
    layer.load_state_dict({**state, "num_batches_tracked": torch.tensor(0)})
    return call.emit(layer, call.laid_out(value, value.shape[1:]))


@imports("Identity", "Dropout")
def identity(call: Call) -> Value:
    if call.node.op_type == "Dropout":
        training = call.constant(2)
        if training is not None and bool(training):
            raise call.unsupported("it drops values at random: it is in training mode")
    return call.value()


@imports("Softmax", "LogSoftmax")
def softmax(call: Call) -> Value:
    """Left out where it is the network's end and only the order of the outputs counts."""
    value = call.value()
    axis = int(call.attribute("axis", 1 if call.opset < 13 else -1)) % len(value.shape)
    together = value.shape[axis:] if call.opset < 13 else value.shape[axis : axis + 1]
    if call.node.output[0] != call.importer.file.output_name or math.prod(together) != math.prod(value.shape):
        raise call.unsupported("only one over all outputs, at the network's end, can be left out")
    if not call.importer.drop_softmax:
        raise call.unsupported(
            "it is not linear; export the network without it, which keeps the order of the outputs "
            "(`lipgraft vnnlib` leaves it out by itself if a property only compares outputs with each"
            " other)"
        )
    call.importer.dropped = call.node.op_type
    return value


@imports("Cast")
def cast(call: Call) -> Value:
    """Between float and double: a question of rounding alone, and all work is done in the input's type."""
    to = int(call.attribute("to"))
    if to not in (1, 11):  # FLOAT, DOUBLE
        raise call.unsupported("it converts to a type other than float and double")
    return call.value()
