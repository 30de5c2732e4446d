"""Element-wise activations."""

from __future__ import annotations

from torch import nn

from lipgraft.interop.importer import Call, Value, imports


@imports("Relu")
def relu(call: Call) -> Value:
    return _activation(call, nn.ReLU())


@imports("LeakyRelu")
def leaky_relu(call: Call) -> Value:
    return _activation(call, nn.LeakyReLU(float(call.attribute("alpha", 0.01))))


@imports("Sigmoid")
def sigmoid(call: Call) -> Value:
    return _activation(call, nn.Sigmoid())


@imports("Tanh")
def tanh(call: Call) -> Value:
    return _activation(call, nn.Tanh())


def _activation(call: Call, layer: nn.Module) -> Value:
    value = call.value()
    return call.emit(layer, value, shape=value.shape)
