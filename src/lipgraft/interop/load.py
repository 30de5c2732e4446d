"""`load_onnx`: a network from an ONNX file, checked against onnxruntime."""

from __future__ import annotations

import os

import torch

from lipgraft.errors import UnsupportedOperationError
from lipgraft.interop import operators  # noqa: F401 (fills the registry)
from lipgraft.interop.importer import Importer
from lipgraft.interop.module import OnnxNetwork
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.network import full_precision

_CHECK_SCALES = (0.0, 0.1, 1.0, 3.0)
TOLERANCE = 1e-4  # of the largest output; two orders of summation differ by far less


def load_onnx(path: str | os.PathLike[str]) -> OnnxNetwork:
    """The network in an .onnx file (opset 9 to 21; gzip too) as a module that `lipgraft.network.trace` can trace.

    The module takes (B, *module.input_shape) and returns (B, outputs), whatever batch axis the file has. It has been
    compared with onnxruntime on random inputs.
    """
    return import_checked(OnnxRuntime(path))


def import_checked(judge: OnnxRuntime) -> OnnxNetwork:
    """The network behind the ONNX Runtime session, compared with it."""
    network = Importer(judge.file).run()
    _check(network, judge)
    return network


@torch.no_grad()
def _check(network: OnnxNetwork, judge: OnnxRuntime) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(len(_CHECK_SCALES), *network.input_shape, generator=generator)
    x = (x - 0.3) * torch.tensor(_CHECK_SCALES).reshape(-1, *[1] * len(network.input_shape))
    x = x.to(getattr(torch, judge.file.dtype))
    with full_precision():
        got, expected = network(x), judge(x)
    if got.shape != expected.shape:
        raise UnsupportedOperationError(
            f"{judge.file.path}: the imported network has {got.shape[1]} outputs where onnxruntime has "
            f"{expected.shape[1]}."
        )
    worst = float((got - expected).abs().nan_to_num(nan=torch.inf).max())
    if worst > TOLERANCE * max(1.0, float(expected.abs().nan_to_num(nan=0.0).max())):
        raise UnsupportedOperationError(
            f"{judge.file.path}: the imported network differs from onnxruntime by {worst:.3g} on random inputs; it "
            "cannot be verified."
        )
