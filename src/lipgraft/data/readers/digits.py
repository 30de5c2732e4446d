"""The 8x8 digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lipgraft.data.catalogue import Entry
from lipgraft.data.readers.arrays import Arrays, checked, reads

TEST_SIZE = 360


@reads("digits")
def read_digits(entry: Entry, root: Path) -> Arrays:
    """1797 images with values 0..16, scaled to 0..255; a fixed shuffle, of which the last 360 are the test set."""
    from sklearn.datasets import load_digits  # here, because importing scikit-learn is slow

    digits = load_digits()
    # RandomState, because numpy promises that its stream never changes: the split is the same everywhere, for good.
    order = np.random.RandomState(0).permutation(len(digits.target))
    pixels = np.rint(digits.images[order] * (255 / 16)).astype(np.uint8)[..., None]
    x, y = checked(root, entry, pixels, digits.target[order])
    return Arrays(x[:-TEST_SIZE], y[:-TEST_SIZE], x[-TEST_SIZE:], y[-TEST_SIZE:])
