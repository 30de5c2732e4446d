"""Nothing is called "sat" before onnxruntime has seen it happen, inside the box."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Region
from lipgraft.rounding import inner_box


@dataclass(frozen=True, eq=False)
class Counterexample:
    """x: (inputs,), y: (outputs,), on the CPU, in the file's dtype: what onnxruntime computes from x."""

    x: Tensor
    y: Tensor


def replay(judge: OnnxRuntime, region: Region, points: Tensor) -> Counterexample | None:
    """The first of some points that violates the property. points: (B, *input_shape), moved into the box first.

    A number that the file's type cannot hold stands for the nearest that it can. Values that are not finite are no
    counterexample.
    """
    dtype = getattr(torch, judge.file.dtype)
    low, high = inner_box(region.lower, region.upper, dtype)
    for point in points:
        x = torch.minimum(torch.maximum(point.detach().cpu().flatten().to(dtype), low), high)
        y = judge(x.reshape(1, *judge.file.input_shape))[0]
        if bool(torch.isfinite(y).all()) and float(region.excess(y[None])) <= 0.0:
            return Counterexample(x, y)
    return None
