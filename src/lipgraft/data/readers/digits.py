"""The 8x8 digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

from functools import cache
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
    """Pixels and labels, kept: scikit-learn reads them from a compressed text, which takes a while."""
    from sklearn.datasets import load_digits  # here, because importing scikit-learn is slow

    digits = load_digits()
    # RandomState, because numpy promises that its stream never changes: the split is the same everywhere, for good.
    order = np.random.RandomState(0).permutation(len(digits.target))
    return np.rint(digits.images[order] * (255 / 16)).astype(np.uint8)[..., None], digits.target[order]
