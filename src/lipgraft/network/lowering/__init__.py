"""From fx calls to graph nodes. Importing this package fills the registry."""

from lipgraft.network.lowering import activations, affine, arithmetic, normalise, pooling, shape
from lipgraft.network.lowering.builder import Builder, Ref
from lipgraft.network.lowering.registry import lowers_function, lowers_method, lowers_module
from lipgraft.network.lowering.walk import lower

__all__ = [
    "Builder",
    "Ref",
    "activations",
    "affine",
    "arithmetic",
    "lower",
    "lowers_function",
    "lowers_method",
    "lowers_module",
    "normalise",
    "pooling",
    "shape",
]
