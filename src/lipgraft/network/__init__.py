"""Any nn.Module of the supported set as a small graph of affine nodes and activations."""

from lipgraft.network.activations import activation_calls
from lipgraft.network.build import agree, trace, trace_in_double, trace_within
from lipgraft.network.evaluate import evaluate
from lipgraft.network.evaluation import call, evaluated, known_input_shape, like, subject
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
    Pick,
    Planar,
    Reshape,
    Scale,
)
from lipgraft.network.lowering import Builder, Ref, lowers_function, lowers_method, lowers_module
from lipgraft.network.nodes import Cosine, Floor, Power, Product, Quotient, Sign, Sine
from lipgraft.network.precision import full_precision, ordinary, ordinary_tensors, stepwise
from lipgraft.network.rewrite import evenly_padded, expanded, kinks_at_zero
from lipgraft.network.rounding import rounding_errors, rounding_tolerance
from lipgraft.network.tracing import normalises, trace_fx

__all__ = [
    "Activation",
    "Add",
    "Affine",
    "Builder",
    "Conv",
    "Cosine",
    "Floor",
    "Graft",
    "Input",
    "Linear",
    "Network",
    "Node",
    "Pad",
    "Pick",
    "Planar",
    "Power",
    "Product",
    "Quotient",
    "Ref",
    "Reshape",
    "Scale",
    "Sign",
    "Sine",
    "activation_calls",
    "agree",
    "call",
    "evaluate",
    "evaluated",
    "evenly_padded",
    "expanded",
    "full_precision",
    "kinks_at_zero",
    "known_input_shape",
    "like",
    "lowers_function",
    "lowers_method",
    "lowers_module",
    "normalises",
    "ordinary",
    "ordinary_tensors",
    "rounding_errors",
    "rounding_tolerance",
    "stepwise",
    "subject",
    "trace",
    "trace_fx",
    "trace_in_double",
    "trace_within",
]
