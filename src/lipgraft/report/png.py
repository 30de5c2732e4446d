"""A picture as PNG bytes, and as text that a page can carry inside itself."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

GREY, COLOUR = 0, 2  # PNG colour types


def encode(image: NDArray[np.floating[Any]]) -> bytes:
    """(H, W, C) in [0, 1], C 1 or 3 -> an 8-bit PNG. Values outside are clipped."""
    pixels = np.rint(np.clip(image, 0.0, 1.0) * 255).astype(np.uint8)
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: the row is stored as it is
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, 9)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def data_uri(image: NDArray[np.floating[Any]]) -> str:
    """The picture as a data: address."""
    return "data:image/png;base64," + base64.b64encode(encode(image)).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
