"""lipgraft watch RUN: how far a job is that runs elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lipgraft.cli.common import ThreadsOption, example, say

EPILOG = example("lipgraft watch runs/quickstart", "lipgraft watch runs/base --every 60")


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a train, verify or run, finished or not.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and stop.")] = False,
    threads: ThreadsOption = None,
) -> None:
    """Follow a running job from another terminal: a line whenever something has changed, until Ctrl-C.

    It only reads; the job does not notice.
    """
    from lipgraft.runs.watch import look

    before: list[str] = []
    while True:
        now = look(run)
        for line in now:
            if line not in before:
                say(line)
        if once:
            if not now:
                say(f"{run}: nothing finished yet")
            return
        before = now
        time.sleep(every)
