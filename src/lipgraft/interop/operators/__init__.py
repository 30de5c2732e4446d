"""One small function per ONNX operator. Importing this package fills the registry."""

from lipgraft.interop.operators import activations, affine, arithmetic, normalise, pooling, shape

__all__ = ["activations", "affine", "arithmetic", "normalise", "pooling", "shape"]
