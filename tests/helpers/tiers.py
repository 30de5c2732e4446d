"""What `tests/conftest.py` notes of the tests that it collects, for `tests/test_tiers.py` to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

TIERS = pytest.StashKey[dict[Path, set[bool]]]()
"""For every file that was collected, whether its tests are long: {True}, {False} or both."""
