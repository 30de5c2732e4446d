"""A live line for people: how far a run is, and when it ends, as far as anybody can say; and who does what of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import get_args

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lipgraft.progress import NowAndThen
from lipgraft.runs.store import Row
from lipgraft.verification import VerifySettings
from lipgraft.verification.verdict import Status

SHOWN = 16
"""Workers in the table; of more, those with the most open images."""


@dataclass(frozen=True)
class WorkerState:
    """What one of several workers has done of a run so far. open: the images that it is at now."""

    number: int
    open: int
    decided: int
    subproblems: int


class VerifyProgress:
    """Counts of a run, shown on standard error while it goes on: live on a terminal, a line now and then elsewhere.

    settings: those of the run, whose limits bound the time that is left. clock: seconds that never go back.
    workers: asked for what each worker does, where there are several; on a terminal they get a table below the line.
    """

    def __init__(
        self,
        console: Console | None = None,
        settings: VerifySettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        workers: Callable[[], Sequence[WorkerState]] | None = None,
    ) -> None:
        self._settings, self._clock, self._workers = settings, clock, workers
        self.total, self.new, self.subproblems = 0, 0, 0
        # With all keys from the start: the line is made in a thread of its own, while this one counts.
        self.counts = Counter(dict.fromkeys(get_args(Status), 0))
        self.began = self.branching = self.last = clock()
        self._console = console or Console(stderr=True)
        # The line is made anew at every refresh: between two verdicts minutes may pass.
        self._live = Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=self._picture)
        self._lines: NowAndThen | None = NowAndThen(clock)  # where there is no terminal

    def __enter__(self) -> VerifyProgress:
        if self._console.is_terminal:
            self._live.start()
            self._lines = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def started(self, total: int, rows: list[Row]) -> None:
        self.total = total
        self.counts.update(row.verdict.status for row in rows)

    def decided(self, row: Row) -> None:
        self.new += 1
        self.counts[row.verdict.status] += 1
        self.last = self._clock()
        self._tell()

    def bounded(self, subproblems: int) -> None:
        if self.subproblems == 0:
            self.branching = self._clock()
        self.subproblems += subproblems
        self._tell()

    def _tell(self) -> None:
        if self._lines is not None:
            self._lines.tell(self.line)

    def _picture(self) -> Group:
        """The line, and the table of workers if there are some."""
        states = [] if self._workers is None else list(self._workers())
        return Group(Text(self.line()), *([_table(states)] if states else []))

    def line(self) -> str:
        """decided / all, by status, speed of branch and bound, time taken and time left."""
        done, now = self.counts.total(), self._clock()
        parts = [
            f"decided {done}/{self.total}",
            f"open {self.total - done}",
            f"verified {self.counts['verified']}",
            f"falsified {self.counts['falsified']}",
        ]
        if self.subproblems and now > self.branching:
            parts.append(f"{self.subproblems / (now - self.branching):,.0f} subproblems/s")
        parts.append(f"{_minutes(now - self.began)} so far")
        parts += self._left(now, self.total - done)
        return " | ".join(parts)

    def _left(self, now: float, images: int) -> list[str]:
        """The time left if the open images take as long as those before, or as the present one has taken by now.

        Easy images end first, so this is not the most it can take; the run's limits are, where it has some.
        """
        most = self._most(now, images)
        if self.new:
            each = max((self.last - self.began) / self.new, now - self.last)
            if each * images < most:
                return [f"about {_minutes(each * images)} left"]
        return [f"at most {_minutes(most)} left"] if most < float("inf") else []

    def _most(self, now: float, images: int) -> float:
        if self._settings is None:
            return float("inf")
        whole = self._settings.limits.total_seconds
        alone = self._settings.limits.timeout * images
        return alone if whole is None else min(alone, max(whole - (now - self.began), 0.0))


def _table(states: Sequence[WorkerState]) -> Table:
    """A row for each worker, as far as there is room for them."""
    table = Table("worker", "open", "decided", "subproblems", box=None, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    shown = sorted(states, key=lambda state: -state.open)[:SHOWN]
    for state in sorted(shown, key=lambda state: state.number):
        table.add_row(str(state.number), str(state.open), str(state.decided), f"{state.subproblems:,}")
    if len(states) > len(shown):
        table.caption = f"and {len(states) - len(shown)} others"
    return table


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
