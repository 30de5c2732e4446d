"""A time limit that holds in every step, reading included: whoever notices that it is over raises OutOfTime."""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """The deadline has passed. It never leaves the package: the answer is "timeout"."""


def check_time(deadline: float) -> None:
    """Raise OutOfTime after the deadline (by time.monotonic)."""
    if time.monotonic() > deadline:
        raise OutOfTime
