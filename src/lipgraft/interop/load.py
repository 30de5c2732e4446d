"""`load_onnx`: a network from an ONNX file, checked against onnxruntime."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor

from lipgraft.errors import UnsupportedOperationError
from lipgraft.interop import operators  # noqa: F401 (fills the registry)
from lipgraft.interop.clock import check_time
from lipgraft.interop.importer import Importer
from lipgraft.interop.module import OnnxNetwork
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.network import evaluate, full_precision, rounding_tolerance, trace

_SCALES = (0.0, 0.1, 1.0, 3.0)
TOLERANCE = 1e-4  # of each output's own size; two orders of summation differ by far less


def load_onnx(path: str | os.PathLike[str]) -> OnnxNetwork:
    """The network in an .onnx file (opset 9 to 21; gzip too) as a module that `lipgraft.network.trace` can trace.

    The module takes (B, *module.input_shape) and returns (B, outputs), whatever batch axis the file has. It has been
    compared with onnxruntime on random inputs.
    """
    return import_checked(OnnxRuntime(path))


def import_checked(judge: OnnxRuntime, deadline: float = math.inf, *, drop_softmax: bool = False) -> OnnxNetwork:
    """The network behind the ONNX Runtime session, compared with it. After the deadline, OutOfTime is raised.

    drop_softmax: see `Importer`.
    """
    with torch.random.fork_rng(devices=[]):  # layers draw random weights before they get those of the file
        network = Importer(judge.file, deadline, drop_softmax=drop_softmax).run()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(len(_SCALES), *network.input_shape, generator=generator) - 0.3
    check_import(network, judge, x * torch.tensor(_SCALES).reshape(-1, *[1] * len(network.input_shape)), deadline)
    return network


@torch.no_grad()
def check_import(network: OnnxNetwork, judge: OnnxRuntime, x: Tensor, deadline: float = math.inf) -> None:
    """Refuse a network that differs from onnxruntime in any output at any of these points. x: (B, *input_shape).

    An output may differ by a share of its own size, and by what another order of summation can do to it.
    """
    dtype = getattr(torch, judge.file.dtype)
    x = x.detach().cpu().to(dtype)
    with full_precision():
        copy = deepcopy(network).cpu().to(dtype)
        got = torch.cat([copy(point[None]) for point in _in_time(x, deadline)])
        graph = trace(copy, network.input_shape, check=False, products=True)
        rounding = rounding_tolerance(graph, evaluate(graph, x)).double()
    expected = torch.cat([judge(point[None]) for point in _in_time(x, deadline)])
    if got.shape != expected.shape:
        raise UnsupportedOperationError(
            f"{judge.file.path}: the imported network has {got.shape[1]} outputs where onnxruntime has "
            f"{expected.shape[1]}."
        )
    if network.dropped is not None:  # what it makes of errors is at most twice the largest of them
        rounding = 2 * rounding.amax(1, keepdim=True).expand_as(rounding)
        got = getattr(torch, {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[network.dropped])(got.double(), 1)
    difference = (got.double() - expected.double()).abs()
    alike = (difference <= TOLERANCE * expected.double().abs() + rounding) & difference.isfinite()
    # A division by zero has the same result in both; but numbers must agree somewhere.
    alike |= ((got == expected) | (got.isnan() & expected.isnan())) & alike.any(0)
    if not bool(alike.all()):
        output = int((~alike).any(0).nonzero()[0])
        worst = float(difference[:, output].nan_to_num(nan=torch.inf).max())
        raise UnsupportedOperationError(
            f"{judge.file.path}: the imported network differs from onnxruntime by {worst:.3g} in output {output}; it "
            "cannot be verified."
        )


def _in_time(x: Tensor, deadline: float) -> Iterator[Tensor]:
    for point in x:
        check_time(deadline)
        yield point
