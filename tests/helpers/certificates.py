"""Honest certificates of small networks. Nothing here comes from the checker or the verifier."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnx_networks import Net, network
from prover import Arrays, Prover


def claim(label: int, outputs: int) -> np.ndarray:
    eye = np.eye(outputs)
    return np.delete(eye[label] - eye, label, axis=0)


def certificate(
    net: Net,
    lower: np.ndarray,
    upper: np.ndarray,
    label: int,
    digest: str,
    refine: bool = False,
    spare: float = 1e-6,
    lift: bool = False,
    **meta: Any,
) -> Arrays | None:
    """All arrays of an honest certificate of a class, or None where the proof was not found."""
    assert net.out is not None
    prover = Prover(net, lower.astype(float), upper.astype(float), spare)
    rows = claim(label, len(net.out.offset))
    better = prover.refine() if refine else {}
    better |= prover.lift(rows) if lift else {}
    leaves = prover.prove(rows, np.zeros(len(rows)))
    if leaves is None:
        return None
    version = 2 if lift else 1
    facts = {"format": "lipgraft-certificate", "version": version, "network": digest}
    facts |= {"speaks_of": "real", "claim": "class"}
    arrays = {"meta": packed({**facts, "label": label, **meta}), **better, **leaves}
    arrays |= {"lower": lower.reshape(net.shape), "upper": upper.reshape(net.shape)}
    for k, layer in enumerate(prover.plain):
        arrays |= {
            f"unstable_{k}": layer.unstable.astype(np.int32),
            f"lower_{k}": layer.lower,
            f"upper_{k}": layer.upper,
        }
    return arrays


def packed(meta: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(json.dumps(meta).encode(), np.uint8)


def unpacked(arrays: Arrays) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(arrays["meta"].tobytes())
    return meta


@dataclass
class Case:
    """A network on disk and a certificate of it."""

    net: Net
    file: Path
    digest: str
    arrays: Arrays


def case(folder: Path, family: str, seed: int, radius: float = 0.15, refine: bool = False, **more: Any) -> Case | None:
    """A random network and box; None where the proof was not found."""
    net = network(family, seed)
    file = folder / f"{family}-{seed}.onnx"
    file.write_bytes(net.onnx())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    centre = np.random.default_rng(seed + 1).uniform(-1, 1, int(np.prod(net.shape))).astype(np.float32)
    label = int(net(centre[None].astype(float)).argmax())
    lower, upper = centre - np.float32(radius), centre + np.float32(radius)
    arrays = certificate(net, lower, upper, label, digest, refine, **more)
    return None if arrays is None else Case(net, file, digest, arrays)
