"""Any nn.Module of the supported set as a small graph of affine nodes and activations."""

from lipgraft.network.activations import activation_calls
from lipgraft.network.build import trace
from lipgraft.network.evaluate import evaluate
from lipgraft.network.graph import (
    Activation,
    Add,
    Affine,
    Conv,
    Graft,
    Input,
    Linear,
    Network,
    Node,
    Pad,
    Reshape,
    Scale,
)
from lipgraft.network.lowering import Builder, Ref, lowers_function, lowers_method, lowers_module
from lipgraft.network.precision import full_precision
from lipgraft.network.rewrite import expanded, kinks_at_zero
from lipgraft.network.tracing import trace_fx

__all__ = [
    "Activation",
    "Add",
    "Affine",
    "Builder",
    "Conv",
    "Graft",
    "Input",
    "Linear",
    "Network",
    "Node",
    "Pad",
    "Ref",
    "Reshape",
    "Scale",
    "activation_calls",
    "evaluate",
    "expanded",
    "full_precision",
    "kinks_at_zero",
    "lowers_function",
    "lowers_method",
    "lowers_module",
    "trace",
    "trace_fx",
]
