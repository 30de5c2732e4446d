"""Ctrl-C that is never lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """Remembers, while the block lasts, that Ctrl-C came.

    Python drops an exception that a destructor raises, and Ray's objects have destructors that take their time: an
    interrupt in one of them would be gone. Who works in turns asks `check` in each.
    """

    def __init__(self) -> None:
        self._came, self._ours = False, False

    def __enter__(self) -> Interrupts:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():  # others may not set handlers
            signal.signal(signal.SIGINT, self._note)
            self._ours = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        if self._came:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        signal.default_int_handler(number, frame)
