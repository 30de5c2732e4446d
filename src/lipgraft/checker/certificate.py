"""Reading certificates: arrays of numbers in an .npz file, of which only types and shapes are known so far."""

from __future__ import annotations

import json
import lzma
import re
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lipgraft.checker.network import Array, Rejected, Shape, need

PROOF, COUNTEREXAMPLE = "lipgraft-certificate", "lipgraft-counterexample"
VERSIONS = (1, 2)  # 2 has planes
LARGEST = 2**32  # bytes of one file when unpacked
NAMES = re.compile(
    r"meta|lower|upper|x|rows|offset|alpha|leaf_(row|alpha|plane|depth|split|beta)|(unstable|lower|upper)_\d+"
    r"|refined_\d+_(neuron|side|bound|alpha)|plane_\d+_(neuron|source|used|share|low|high)"
)

# What zipfile, NumPy and JSON raise on damaged files.
DAMAGED = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    SyntaxError,
    OverflowError,
    MemoryError,
    RuntimeError,  # a part that claims to be encrypted
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
)


@dataclass(frozen=True)
class Layer:
    """Bounds given for the neurons of one activation that intervals and CROWN leave unstable."""

    unstable: Array  # (U,), increasing
    lower: Array
    upper: Array


@dataclass(frozen=True)
class Refined:
    """Better bounds for some of these neurons, found with slopes of their own."""

    neuron: Array  # (R,)
    side: Array  # (R,): +1 a lower bound, -1 an upper one
    bound: Array  # (R,)
    alpha: Array  # (R, unstable neurons of all activations before)


@dataclass(frozen=True)
class Planes:
    """G sets of planes above P neurons of one activation, in fractions of the type's largest number."""

    neuron: Array  # (P,), increasing
    used: Array  # (G, P), whether a set has a plane above the neuron
    share: Array  # (G, P, values of all sources)
    low: Array  # (G, P)
    high: Array


@dataclass(frozen=True)
class Leaves:
    """row, alpha, plane, depth, start: one per leaf; plane: which set, or -1.

    split, beta: all leaves' splits in one list, each from the root on.
    """

    row: Array
    alpha: Array
    plane: Array
    depth: Array
    start: Array
    split: Array
    beta: Array


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


class Certificate:
    """The arrays of one file. Each reading checks types, shapes and that numbers are finite."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays
        need("meta" in arrays, "the file has no meta.")
        try:
            self.meta = json.loads(arrays["meta"].tobytes(), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise Rejected(f"the file's meta is no JSON ({error}).") from None
        need(isinstance(self.meta, dict), "the file's meta is no JSON object.")
        need(
            self.meta.get("format") in (PROOF, COUNTEREXAMPLE),
            "the file is neither a certificate nor a counterexample.",
        )
        version = self.meta.get("version", 1)
        need(type(version) is int and version in VERSIONS, f"the file is of version {version!r}, not of {VERSIONS}.")

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """Nothing is unpickled, nothing is written, and nothing is unpacked that a certificate does not have."""
        try:
            need(path.is_file(), "the file cannot be read: it is a link to nothing, or no file at all.")
            with zipfile.ZipFile(path) as parts:
                names = [part.filename.removesuffix(".npy") for part in parts.infolist()]
                odd = [name for name in names if not NAMES.fullmatch(name)]
                need(not odd, f"the file has an array with the name {next(iter(odd), '')!r}, which is not known.")
                need(len(set(names)) == len(names), "the file has an array twice.")
                need(sum(part.file_size for part in parts.infolist()) < LARGEST, "the file is too large when unpacked.")
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: np.asarray(file[name]) for name in file.files}
        except DAMAGED as error:
            raise Rejected(f"the file cannot be read ({type(error).__name__}: {error}).") from None
        return cls(arrays)

    @property
    def is_proof(self) -> bool:
        return bool(self.meta["format"] == PROOF)

    @property
    def speaks_of(self) -> str:
        name = self.meta.get("speaks_of", "real")
        need(name in ("real", "float32"), f"the file speaks of {name!r}, which is neither real nor float32.")
        return str(name)

    def reals(self, name: str, shape: Shape, empty: bool = False) -> Array:
        """empty: an array that is left out counts as one without elements."""
        return self._read(name, shape, "f", empty).astype(np.float64)

    def integers(self, name: str, shape: Shape, least: int, most: int, empty: bool = False) -> Array:
        """Numbers from least to most."""
        array = self._read(name, shape, "iu", empty)
        need(array.size == 0 or (array.min() >= least and array.max() <= most), f"{name} has numbers out of range.")
        return array.astype(np.int64)

    def fractions(self, name: str, *columns: int) -> Array:
        """Rows of numbers in 255ths or 65535ths, any number of them."""
        array = self._read(name, (-1, *columns), "u", empty=True)
        need(array.itemsize <= 2, f"{name} must be of one or two bytes.")
        return array

    def _read(self, name: str, shape: Shape, kinds: str, empty: bool) -> Array:
        """-1 in shape: any length."""
        if empty and name not in self._arrays:
            return np.zeros((0, *shape[1:]), np.uint8)
        need(name in self._arrays, f"{name} is missing.")
        array = self._arrays[name]
        fits = array.ndim == len(shape) and all(n in (-1, m) for n, m in zip(shape, array.shape, strict=True))
        need(fits, f"{name} has the shape {array.shape}, not {shape}.")
        known = array.dtype.kind in kinds and array.itemsize <= 8  # a double holds no finer number
        need(known, f"{name} has numbers of the type {array.dtype}.")
        need(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"{name} has a number that is not finite.")
        return array

    def box(self, shape: Shape) -> tuple[Array, Array]:
        """The ends, (n,) each."""
        lower, upper = (self.reals(name, shape).reshape(-1) for name in ("lower", "upper"))
        need(bool((lower <= upper).all()), "the box is empty.")
        return lower, upper

    def claim(self, outputs: int, scores: Array | None = None) -> tuple[Array, Array]:
        """rows (S, n), offset (S,): rows @ logits + offset > 0. Of a class: its logit minus each other one.

        scores: (n,); of a class, only the row of the other one that has the highest.
        """
        kind = self.meta.get("claim", "class")
        if kind == "rows":
            rows = self.reals("rows", (-1, outputs))
            need(len(rows) > 0, "nothing is claimed.")
            return rows, self.reals("offset", (len(rows),))
        need(kind == "class", f"the claim {kind!r} is not known.")
        label = self.meta.get("label")
        need(
            type(label) is int and 0 <= label < outputs and outputs > 1,
            f"the label {label!r} is no class of the network.",
        )
        others = np.delete(np.arange(outputs), label)
        if scores is not None:
            others = others[[scores[others].argmax()]]
        else:  # before a small file makes the checker write down many rows
            leaves = len(self.integers("leaf_row", (-1,), 0, outputs - 2))
            need(leaves >= len(others), f"some of the claim's {len(others)} rows have no leaf: there are {leaves}.")
        rows = np.zeros((len(others), outputs))
        rows[:, label] = 1.0
        rows[np.arange(len(others)), others] = -1.0
        return rows, np.zeros(len(others))

    def layer(self, k: int, size: int) -> Layer:
        """size: neurons of activation k."""
        unstable = self.integers(f"unstable_{k}", (-1,), 0, size - 1, empty=True)
        need(bool((np.diff(unstable) > 0).all()), f"unstable_{k} is not in increasing order.")
        lower, upper = (self.reals(f"{end}_{k}", unstable.shape, empty=True) for end in ("lower", "upper"))
        need(len(lower) == len(upper) == len(unstable), f"lower_{k} or upper_{k} is missing.")
        need(bool(((lower < 0) & (upper > 0)).all()), f"lower_{k} < 0 < upper_{k} does not hold.")
        return Layer(unstable, lower, upper)

    def refined(self, k: int, size: int, before: int) -> Refined:
        """size: neurons of activation k; before: unstable neurons of the activations before it."""
        neuron = self.integers(f"refined_{k}_neuron", (-1,), 0, size - 1, empty=True)
        side = self.integers(f"refined_{k}_side", (-1,), -1, 1, empty=True)
        alpha = self.fractions(f"refined_{k}_alpha", before)
        bound = self.reals(f"refined_{k}_bound", (-1,), empty=True)
        fits = len(side) == len(neuron) == len(bound) == len(alpha) and bool(side.all())
        need(fits, f"the parts of refined_{k} do not fit each other.")
        return Refined(neuron, side, bound, alpha)

    def plane_sources(self, k: int, activations: int) -> Array:
        """What neurons of activation k with planes read, by name (see `planes.source`); nothing: there are none."""
        return self.integers(f"plane_{k}_source", (-1,), -activations - 1, activations - 1, empty=True)

    def planes(self, k: int, size: int, values: int) -> Planes:
        """size: neurons of activation k; values: of all sources."""
        neuron = self.integers(f"plane_{k}_neuron", (-1,), 0, size - 1)
        need(bool((np.diff(neuron) > 0).all()), f"plane_{k}_neuron is not in increasing order.")
        share = self.fractions(f"plane_{k}_share", len(neuron), values)
        low, high = (self.fractions(f"plane_{k}_{end}", len(neuron)) for end in ("low", "high"))
        need(len(share) == len(low) == len(high), f"the parts of plane_{k} do not fit each other.")
        used = self.integers(f"plane_{k}_used", low.shape, 0, 1) == 1
        return Planes(neuron, used, share, low, high)

    def leaves(self, rows: int, table: int, unstable: int, planes: int = 0) -> Leaves:
        """planes: how many sets there are."""
        row = self.integers("leaf_row", (-1,), 0, rows - 1)
        alpha = self.integers("leaf_alpha", row.shape, -1, table - 1)
        plane = np.full(len(row), -1)
        if "leaf_plane" in self._arrays:
            plane = self.integers("leaf_plane", row.shape, -1, planes - 1)
        need(bool((alpha[plane >= 0] >= 0).all()), "a leaf with planes has no slopes of its own.")
        depth = self.integers("leaf_depth", row.shape, 0, unstable)
        split = self.integers("leaf_split", (int(depth.sum()),), -unstable, unstable, empty=True)
        beta = self.reals("leaf_beta", split.shape, empty=True)
        need(len(split) == depth.sum() == len(beta), "leaf_split or leaf_beta is missing.")
        need(bool(split.all()), "leaf_split has a zero.")
        need(bool((beta >= 0).all()), "a multiplier is negative.")
        return Leaves(row, alpha, plane, depth, np.cumsum(depth) - depth, split, beta)
