"""Read the CIFAR pickles without running what is in them.

A pickle may name any function and call it. This reader resolves only the few names that rebuild plain numpy arrays;
every other name is refused before it is looked up, so nothing of it is imported or called.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from lipgraft.errors import DataError


def _encode_latin1(text: str, encoding: str) -> bytes:
    """`_codecs.encode` as Python 3 writes bytes into old pickles: always latin1, never another codec."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the codec {encoding!r}")
    return text.encode("latin1")


# Asked of an array, because numpy 1 and 2 keep these two in different places.
_reconstruct = np.zeros(1).__reduce_ex__(2)[0]
_frombuffer = np.zeros(1).__reduce_ex__(5)[0]

# Resolved by hand: numpy 1 wrote numpy.core, numpy 2 writes numpy._core and warns about the old name.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _encode_latin1,
}


class ForbiddenName(pickle.UnpicklingError):
    """The pickle names something that is not a plain array."""


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise ForbiddenName(f"{module}.{name}") from None


def load_arrays(path: Path) -> dict[str, Any]:
    """The dict in a CIFAR file, with text keys (the official files, written by Python 2, have bytes)."""
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
    except ForbiddenName as error:
        raise DataError(
            f"{path} names {error}, which no CIFAR file does; it was not run, fetch a clean copy."
        ) from None
    except MemoryError:
        raise DataError(
            f"{path} asks for more memory than there is, which no CIFAR file does; fetch it again."
        ) from None
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}); fetch the file again.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} does not hold a CIFAR batch; fetch the file again.")
    return {_text(key): value for key, value in content.items()}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
