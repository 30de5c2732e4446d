"""What a verdict depends on: the network, the images, the question and the verifier.

Of a module the traced graph counts, with everything that forward computes with, registered or not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lipgraft.network import Network
from lipgraft.version import __version__


@dataclass(frozen=True)
class Identity:
    """What results belong to; results of anything else never mix with these.

    model, images: fingerprints of the traced network and of all test images with their labels; dataset: the images'
    name, for people; settings: of the verifier; verifier: its version.
    """

    model: str
    dataset: str
    eps: float
    settings: Mapping[str, Any]
    images: str = ""
    verifier: str = __version__

    @staticmethod
    def of(
        network: Network, x: Tensor, y: Tensor, eps: float, settings: Mapping[str, Any], dataset: str = ""
    ) -> Identity:
        """x, y: the whole test set, so that a run may take up more of its images later."""
        return Identity(network_fingerprint(network), dataset, float(eps), settings, images_fingerprint(x, y))

    def texts(self) -> dict[str, str]:
        """Every part as text, to be stored and compared."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "images": self.images,
            "eps": repr(self.eps),
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            "verifier": self.verifier,
        }


def network_fingerprint(network: Network) -> str:
    """SHA-256 of the nodes' kinds, wiring, shapes, weights and other parameters; names and device do not count."""
    digest = hashlib.sha256(f"output {network.output}\n".encode())
    for node in network.nodes:
        digest.update(f"{type(node).__name__}\n".encode())
        for field in fields(node):
            if field.name != "name":
                digest.update(f"{field.name} ".encode())
                _add(digest, getattr(node, field.name))
    return digest.hexdigest()


def images_fingerprint(x: Tensor, y: Tensor) -> str:
    """SHA-256 of images and their labels: types, shapes and values."""
    digest = hashlib.sha256()
    _add(digest, x)
    _add(digest, y)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """A kind of value that is not known here is refused: left out, it would make stale verdicts."""
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(f"{type(value).__name__}\n".encode())
        for field in fields(value):
            digest.update(f"{field.name} ".encode())
            _add(digest, getattr(value, field.name))
    elif isinstance(value, tuple):
        digest.update(f"tuple {len(value)}\n".encode())
        for item in value:
            _add(digest, item)
    elif value is None or isinstance(value, bool | int | float | str):
        digest.update(f"{type(value).__name__} {value!r}\n".encode())
    else:
        raise TypeError(f"a network's fingerprint cannot hold {type(value).__name__}")
