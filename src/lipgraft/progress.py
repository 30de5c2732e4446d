"""Progress bars for people at a terminal. Engines know nothing of them: they call back with how far they have got."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """What an engine calls: how much is done, of how much, and (training) the metrics of the last epoch."""

    def __call__(self, done: int, total: int, metrics: Mapping[str, float] | None = None, /) -> None: ...


@contextmanager
def bar(title: str, *, show: bool | None = None, keep: bool = False) -> Iterator[Advance]:
    """A progress bar on standard error, as a callback for `progress=`.

    show: None shows it on a terminal only. keep: leave the bar on the screen when it is done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = sys.stderr.isatty() if show is None else show
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
    )
    display = Progress(*columns, console=Console(stderr=True), disable=not shown, transient=not keep)
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
