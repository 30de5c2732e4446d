"""Ctrl-C while modules are being imported.

Python drops an exception that a callback raises inside an import, or leaves a half-loaded NumPy behind, with which the
command then goes on. Within `held_back` Ctrl-C is noted, and it takes effect at the end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Within, Ctrl-C waits; at the end it does what it would have done."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is None or threading.current_thread() is not threading.main_thread():  # others may not set handlers
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            signal.raise_signal(signal.SIGINT)
