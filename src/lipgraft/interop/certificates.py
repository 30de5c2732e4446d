"""A folder of certificates: the network once, and a file for every proof and counterexample. See docs/proofs.md."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch

from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_bytes, check_folder, sync_files
from lipgraft.interop.export import serialised
from lipgraft.network import Network
from lipgraft.verification import Certificate

NETWORK = "network.onnx"
VERSION, WITH_PLANES = 1, 2  # of the format: older checkers read what has no planes


class CertificateFolder:
    """Writes certificates of one network into a folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """path: made if it is not there; one with certificates of the same network gets more of them."""
        self.path = check_folder(Path(path))
        self._network: tuple[Network, str] | None = None
        self._new: list[Path] = []

    def has(self, number: int) -> bool:
        """Whether the proof of image `number` is there, and not cut short, as a power cut may leave it."""
        return is_zipfile(self.proof(number))

    def has_counterexample(self, number: int) -> bool:
        """The same of its counterexample."""
        return is_zipfile(self.counterexample(number))

    def put(self, number: int, certificate: Certificate, **facts: Any) -> int:
        """Write the proof or counterexample of image `number`; returns its size in bytes.

        facts: to be read by people alone. It survives a power cut after `settle` only: a disk would hold up the search.
        """
        meta = {
            "format": "lipgraft-certificate" if certificate.is_proof else "lipgraft-counterexample",
            "network": self._fingerprint(certificate.network),
            "speaks_of": certificate.speaks_of,
            "claim": "class",
            "label": certificate.label,
        }
        path = self.proof(number) if certificate.is_proof else self.counterexample(number)
        self._new.append(path)
        return _write(path, {**facts, **meta}, certificate.arrays)

    def settle(self) -> None:
        """Wait until the disk has all that was written."""
        sync_files(self._new)
        self._new.clear()

    def proof(self, number: int) -> Path:
        """The file of image `number`, if it is proved."""
        return self.path / f"{number:06d}.npz"

    def counterexample(self, number: int) -> Path:
        """The file of image `number`, if it is falsified."""
        return self.path / f"{number:06d}.counterexample.npz"

    def _fingerprint(self, network: Network) -> str:
        """The network's file, written before the first proof that speaks of it: its SHA-256."""
        if self._network is None or self._network[0] is not network:
            content = serialised(network.to(device="cpu"), torch.float64)
            path = self.path / NETWORK
            if path.exists() and path.read_bytes() != content:
                raise SettingsError(
                    f"{self.path} has certificates of another network; give another folder, or delete this one."
                )
            if not path.exists():
                atomic_write_bytes(path, content)
            self._network = network, hashlib.sha256(content).hexdigest()
        return self._network[1]


def _write(path: Path, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> int:
    version = WITH_PLANES if "leaf_plane" in arrays else VERSION
    text = json.dumps({**meta, "version": version}, sort_keys=True).encode()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, meta=np.frombuffer(text, np.uint8), **arrays)
    content = buffer.getvalue()
    atomic_write_bytes(path, content, sync=False)
    return len(content)
