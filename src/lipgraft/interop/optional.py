"""onnx and onnxruntime are optional: they are imported when they are needed, and missed with a sentence."""

from __future__ import annotations

import importlib
from typing import Any

from lipgraft.errors import CheckpointError


def need(name: str) -> Any:
    """The module of this name, of the onnx or the onnxruntime package."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise CheckpointError(f"ONNX files need the {package} package: pip install onnx onnxruntime.") from None
