"""Running an ONNX file with onnxruntime: the independent judge of imports, exports and counterexamples."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipgraft.errors import CheckpointError
from lipgraft.interop.onnx_file import read_onnx
from lipgraft.interop.optional import need


class OnnxRuntime:
    """A session on the CPU, with one thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = read_onnx(path)
        runtime = need("onnxruntime")
        options: Any = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what matters is raised
        model = self.file.model.SerializeToString() if self.file.packed else str(self.file.path)
        errors: Any = need("onnxruntime.capi.onnxruntime_pybind11_state")
        kinds: list[type[Exception]] = [
            kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)
        ]
        # Its own errors have no common base; ValueError and RuntimeError are what its Python side adds.
        self._failures: tuple[type[Exception], ...] = (*kinds, ValueError, RuntimeError)
        try:
            # Without enable_fallback=0, it tells of errors on standard output and tries again.
            session: Any = runtime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except self._failures as error:
            raise CheckpointError(f"onnxruntime cannot run {self.file.path}: {_first_line(error)}") from None
        self.session = session

    def __call__(self, x: Tensor) -> Tensor:
        """x: (B, *input_shape) -> (B, outputs), in the file's dtype; one input at a time."""
        points = x.detach().cpu().numpy().astype(self.file.dtype)
        try:
            rows = [self.session.run(None, {self.file.input_name: p.reshape(self.file.shape)})[0] for p in points]
        except self._failures as error:
            raise CheckpointError(f"onnxruntime cannot run {self.file.path}: {_first_line(error)}") from None
        return torch.from_numpy(np.stack([np.asarray(row).reshape(-1) for row in rows]))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
