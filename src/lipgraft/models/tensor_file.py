"""A safetensors file, read with care: each way it can be wrong has its own sentence. Nothing here runs a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from lipgraft.errors import CheckpointError

LENGTH_BYTES = 8  # the file starts with the header's length, little endian; the header is JSON
LONGEST_HEADER = 100_000_000  # the limit of safetensors itself
ZIP_MAGIC = b"PK\x03\x04"
PICKLE_MAGICS = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


@dataclass(frozen=True, eq=False)
class TensorFile:
    """The tensors by name, and the text metadata."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def read(path: Path) -> TensorFile:
    """The whole file, on the CPU."""
    content = _content(path)
    header = _header(path, content)
    try:
        return TensorFile(safetensors.torch.load(content), _metadata(path, header))
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); restore it from a copy.") from None


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata alone; the file is checked to be whole."""
    return _metadata(path, _header(path, _content(path)))


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The file's content. Tensors are copied, since safetensors refuses those that share memory."""
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(copies, dict(metadata))


def existing(path: Path) -> Path:
    """The path, when a file is there."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a directory; give the file, such as {_one_in(path)}.")
    if not path.exists():
        whole = path.with_name(f"{path.name}.safetensors")
        hint = f"did you mean {whole}?" if whole.is_file() else "check the path."
        raise CheckpointError(f"there is no checkpoint at {path}; {hint}")
    return path


def _one_in(folder: Path) -> Path:
    """A checkpoint of the folder, or of the run that is in it; else a name that one could have."""
    best = folder / "checkpoints" / "best.safetensors"
    there = (
        [best] if best.is_file() else sorted([*folder.glob("*.safetensors"), *folder.glob("checkpoints/*.safetensors")])
    )
    return next(iter(there), folder / "model.safetensors")


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not content:
        raise CheckpointError(f"{path} is empty; the write that made it did not finish.")
    if not _starts_like_safetensors(content) and content.startswith((ZIP_MAGIC, *PICKLE_MAGICS)):
        raise CheckpointError(
            f"{path} is a pickle, which can run code when read, so it is never loaded; save the model with "
            "lipgraft.models.save, or its state dict with safetensors."
        )
    return content


def _starts_like_safetensors(content: bytes) -> bool:
    """A plausible length, then JSON. To be asked first: a header of 640 bytes starts like a pickle does."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    return length <= LONGEST_HEADER and content[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"


def _header(path: Path, content: bytes) -> dict[str, Any]:
    if not _starts_like_safetensors(content):
        raise CheckpointError(
            f"{path} is not a safetensors file; give a checkpoint that lipgraft wrote, or a .onnx file."
        )
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < LENGTH_BYTES + length:
        raise CheckpointError(f"{path} is truncated: its header should have {length} bytes; restore it from a copy.")
    try:
        header = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = LENGTH_BYTES + length + max(ends, default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise CheckpointError(f"{path} has a header that cannot be understood; restore it from a copy.") from None
    if len(content) < expected:
        raise CheckpointError(
            f"{path} is truncated: {len(content)} bytes where {expected} are expected; restore it from a copy."
        )
    if len(content) > expected:
        raise CheckpointError(
            f"{path} is damaged: {len(content)} bytes where {expected} are expected; restore it from a copy."
        )
    return dict(header)


def _metadata(path: Path, header: dict[str, Any]) -> dict[str, str]:
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path} has metadata that is not text; restore it from a copy.")
    return metadata
