"""How far long work is: a bar on a terminal, one line that renews itself in a notebook, a line now and then elsewhere.

Engines know nothing of this: they call back with how far they have got.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

FIRST, EVERY = 5.0, 30.0
"""Seconds before the first line in a pipe or a log, and between two lines."""
RENEW = 0.3
"""Seconds between two renewals of the line in a notebook."""
DEAR = 120.0
"""Seconds of work left from which on it is worth a hint how to have less of it."""


class Advance(Protocol):
    """What an engine calls: how much is done, of how much, and (training) the metrics of the last epoch."""

    def __call__(self, done: int, total: int, metrics: Mapping[str, float] | None = None, /) -> None: ...


class NowAndThen:
    """Prints a line when the last one is long enough ago, so that a log shows life and stays short."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.next = clock, clock() + FIRST
        self.printed = False

    def tell(self, line: Callable[[], str]) -> None:
        """line: makes the text, when it is time for it."""
        now = self.clock()
        if now >= self.next:
            self.next, self.printed = now + EVERY, True
            print(line(), file=sys.stderr, flush=True)


def in_notebook() -> bool:
    """Whether a notebook shows what is printed here."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


def duration(seconds: float) -> str:
    """Seconds in words, as exactly as an estimate deserves: "40 seconds", "23 minutes", "3.5 hours"."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} second{'s' if round(seconds) > 1 else ''}"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


@contextmanager
def bar(
    title: str,
    *,
    show: bool = True,
    keep: bool = False,
    place: str = "",
    hint: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Advance]:
    """Shows how far something is, as a callback for `progress=`. On standard error, in a notebook on standard output.

    keep: leave the bar on the screen when it is done. place: where it runs, such as "this CPU", for lines that say how
    long it will take. hint: how to have less of it, told once where it will take minutes.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model, x, y = torch.nn.Linear(2, 2), torch.rand(3, 2), torch.zeros(3, dtype=torch.long)
        >>> with lg.progress.bar("verifying", show=False) as show:
        ...     verdicts = lg.verify(model, x, y, 0.01, progress=show)
    """
    if not show:
        yield lambda done, total, metrics=None, /: None
    elif sys.stderr.isatty():
        with _bar(title, keep) as advance:
            yield advance
    else:
        words = _Words(title, place, hint, clock)
        if in_notebook():
            yield words.renew
            print(flush=True)
        else:
            yield words.advance
            words.end()


class _Words:
    """Progress in words, with the time that is left."""

    def __init__(self, title: str, place: str, hint: str, clock: Callable[[], float]) -> None:
        self.title, self.place, self.hint, self.clock = title, place, hint, clock
        self.lines = NowAndThen(clock)
        self.began = self.again = clock()
        self.first: tuple[float, int] | None = None  # what was done before this run must not count as its speed

    def advance(self, done: int, total: int, metrics: Mapping[str, float] | None = None, /) -> None:
        self.lines.tell(lambda: self._line(done, total, metrics))
        self._start(done)

    def renew(self, done: int, total: int, metrics: Mapping[str, float] | None = None, /) -> None:
        if done == total or self.clock() >= self.again:
            self.again = self.clock() + RENEW
            print(f"\r{self._line(done, total, metrics):<100}", end="", flush=True)
        self._start(done)

    def end(self) -> None:
        if self.lines.printed:
            print(f"{self.title}: done after {duration(self.clock() - self.began)}", file=sys.stderr, flush=True)

    def _start(self, done: int) -> None:
        self.first = self.first or (self.clock(), done)

    def _line(self, done: int, total: int, metrics: Mapping[str, float] | None) -> str:
        parts = [f"{self.title}: {done:,} of {total:,}", *filter(None, [_numbers(metrics or {})])]
        then, before = self.first or (self.began, 0)
        if done > before:
            left = (self.clock() - then) / (done - before) * (total - done)
            parts.append(f"about {duration(left)} left{f' on {self.place}' if self.place else ''}" if left > 0 else "")
            if left > DEAR and self.hint:
                parts[-1] += f" ({self.hint})"
                self.hint = ""
        return ", ".join(filter(None, parts))


@contextmanager
def _bar(title: str, keep: bool) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
    )
    display = Progress(*columns, console=Console(stderr=True), transient=not keep)
    task = display.add_task(title, total=None, numbers="")

    def advance(done: int, total: int, metrics: Mapping[str, float] | None = None, /) -> None:
        display.start()  # not before: work that is refused at once leaves nothing on the screen
        display.update(task, completed=done, total=total, numbers=_numbers(metrics or {}))

    try:
        yield advance
    finally:
        if display.live.is_started:
            display.stop()


def _numbers(metrics: Mapping[str, float]) -> str:
    """The last epoch in a few words."""
    if not metrics:
        return ""
    parts = [f"epoch {metrics['epoch']:.0f}", f"loss {metrics['loss']:.3f}"]
    return "  ".join(parts + [f"{name.upper()} {metrics[name]:.1%}" for name in ("sa", "ra") if name in metrics])
