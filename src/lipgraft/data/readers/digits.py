"""The 8x8 digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lipgraft.data.catalogue import Entry
from lipgraft.data.readers.arrays import Arrays, checked, reads

TEST_SIZE = 360


@reads("digits")
def read_digits(entry: Entry, root: Path) -> Arrays:
    """1797 images with values 0..16, scaled to 0..255; a fixed shuffle, of which the last 360 are the test set."""
    pixels, labels = (part.copy() for part in _shuffled())
    x, y = checked(root, entry, pixels, labels)
    return Arrays(x[:-TEST_SIZE], y[:-TEST_SIZE], x[-TEST_SIZE:], y[-TEST_SIZE:])


@cache
def _shuffled() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pixels and labels, kept: they are read from a compressed text, which takes a while."""
    pixels, labels = _raw()
    # RandomState, because numpy promises that its stream never changes: the split is the same everywhere, for good.
    order = np.random.RandomState(0).permutation(len(labels))
    return np.rint(pixels[order] * (255 / 16)).astype(np.uint8)[..., None], labels[order]


def _raw() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pixels (1797, 8, 8) and labels. Importing scikit-learn takes longer than its file takes to read."""
    found = find_spec("sklearn")
    folders = () if found is None else found.submodule_search_locations or ()
    file = next((f for folder in folders if (f := Path(folder, "datasets/data/digits.csv.gz")).is_file()), None)
    if file is None:  # another version may keep it elsewhere
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
