"""Files made by hand for the checker: networks of a few operators, and the plainest certificates of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from certificates import packed
from lipgraft.checker import Outcome, check_file
from prover import Arrays


def model(
    *nodes: onnx.NodeProto,
    shape: tuple[int, ...] = (2,),
    batch: int | str = "batch",
    opset: int = 13,
    double: bool = False,
    **constants: np.ndarray,
) -> bytes:
    """The bytes of a network from x to y."""
    kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", kind, [batch, *shape])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString()
    return data


def gemm(weight: Any, bias: Any, dtype: Any = np.float64) -> bytes:
    """One affine layer: weight (n, inputs), bias (n,)."""
    constants = {"w": np.array(weight, dtype), "b": np.array(bias, dtype)}
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    return model(node, shape=(constants["w"].shape[1],), double=dtype == np.float64, **constants)


def plainest(data: bytes, lower: Any, upper: Any, rows: int = 1, **meta: Any) -> Arrays:
    """A proof for class 0 without unstable neurons, with one leaf for each row."""
    facts = {"format": "lipgraft-certificate", "version": 1, "network": hashlib.sha256(data).hexdigest(), "label": 0}
    return {
        "meta": packed({**facts, **meta}),
        "lower": np.asarray(lower),
        "upper": np.asarray(upper),
        "leaf_row": np.arange(rows, dtype=np.int32),
        "leaf_alpha": np.full(rows, -1, np.int32),
        "leaf_depth": np.zeros(rows, np.int32),
    }


def pointing(data: bytes, x: Any, **meta: Any) -> Arrays:
    """A counterexample to class 0: the point, in a box that holds nothing else."""
    facts = {"format": "lipgraft-counterexample", "network": hashlib.sha256(data).hexdigest(), "label": 0}
    return {"meta": packed({**facts, **meta}), "lower": np.asarray(x), "upper": np.asarray(x), "x": np.asarray(x)}


def put(folder: Path, data: bytes, arrays: Arrays) -> Path:
    """The folder's first file, and the network beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "network.onnx").write_bytes(data)
    np.savez(folder / "000000.npz", **arrays)
    return folder / "000000.npz"


def checked(folder: Path, data: bytes, arrays: Arrays, exact: int = 0) -> Outcome:
    """The verdict on such a file."""
    return check_file(put(folder, data, arrays), folder / "network.onnx", exact)
