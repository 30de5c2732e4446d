"""The activations of a model, by the names that masks and bounds use."""

from __future__ import annotations

from torch import fx, nn

from lipgraft.network.lowering.naming import call_names, is_activation
from lipgraft.network.tracing import trace_fx


def activation_calls(model: nn.Module) -> list[tuple[str, fx.Node]]:
    """The activations of a model in the order of their calls: (name, call).

    The names are those of the activation nodes of `trace`. The calls belong to a fresh fx graph of the model
    (`call.graph.owning_module`, what `trace_fx` returns), which may be rewritten; its modules are the model's own.
    """
    traced = trace_fx(model)
    names = call_names(traced, traced.graph)
    return [(names[call], call) for call in traced.graph.nodes if is_activation(traced, call)]
