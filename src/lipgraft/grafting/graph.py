"""From a model to its graph, with the checks every part of grafting needs."""

from __future__ import annotations

from torch import nn

from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.network import known_input_shape, subject, trace
from lipgraft.network.graph import Network, Shape


def input_shape_of(model: nn.Module, input_shape: Shape | None = None) -> Shape | None:
    """The shape of one input: as given, else as the model says, else None."""
    if input_shape is None:
        return known_input_shape(model)
    known = getattr(getattr(model, "spec", None), "input_shape", None)
    if known is not None and tuple(known) != tuple(input_shape):
        raise SettingsError(f"the model takes inputs of shape {tuple(known)}, got {tuple(input_shape)}.")
    return tuple(input_shape)


def traced(model: nn.Module | Network, input_shape: Shape | None = None) -> Network:
    """The graph of a model (a Network passes through), which must have an activation to graft. It keeps max pooling."""
    if isinstance(model, Network):
        network = model
        if any(node.auxiliary for _, node in network.activations()):
            raise SettingsError(
                "max pooling is written out as ReLUs in this graph, and those are no neurons to graft; pass the model "
                "itself, or trace it with expand=False."
            )
        if input_shape is not None and network.input_shape != tuple(input_shape):
            raise SettingsError(f"the network takes inputs of shape {network.input_shape}, got {tuple(input_shape)}.")
    else:
        shape = input_shape_of(model, input_shape)
        if shape is None:
            raise SettingsError("the model does not say what it takes; pass input_shape=(C, H, W).")
        network = trace(subject(model), shape, expand=False)
    if next(network.activations(), None) is None:
        raise UnsupportedOperationError("the network has no activations, so there is nothing to graft.")
    return network
