"""A live line for people: how far a run is."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lipgraft.verify.store import Row


class Progress:
    """Counts of a run, shown on a terminal's standard error while it goes on."""

    def __init__(self, console: Console | None = None, limit: float | None = None) -> None:
        """limit: seconds after which the run ends by itself, if it has such a limit."""
        self._limit = limit
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self.total, self.subproblems = 0, 0
        self.counts: Counter[str] = Counter()
        self.began = self.branching = time.monotonic()

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def started(self, total: int, rows: list[Row]) -> None:
        self.total = total
        self.counts.update(row.verdict.status for row in rows)
        self._show()

    def decided(self, row: Row) -> None:
        self.counts[row.verdict.status] += 1
        self._show()

    def bounded(self, subproblems: int) -> None:
        if self.subproblems == 0:
            self.branching = time.monotonic()
        self.subproblems += subproblems
        self._show()

    def line(self) -> str:
        """decided / all, by status, speed of branch and bound, time so far and at most.

        How long the open images will take cannot be told from those that ended: they are open because they are hard.
        """
        done, now = self.counts.total(), time.monotonic()
        parts = [
            f"decided {done}/{self.total}",
            f"open {self.total - done}",
            f"verified {self.counts['verified']}",
            f"falsified {self.counts['falsified']}",
        ]
        if self.subproblems and now > self.branching:
            parts.append(f"{self.subproblems / (now - self.branching):,.0f} subproblems/s")
        spent = _clock(now - self.began)
        parts.append(spent if self._limit is None else f"{spent} of at most {_clock(self._limit)}")
        return " | ".join(parts)

    def _show(self) -> None:
        if self._live.is_started:
            self._live.update(Text(self.line()))


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
