"""lipgraft watch RUN: how far a job is that runs elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lipgraft.cli.common import ThreadsOption, example, say

EPILOG = example("lipgraft watch runs/quickstart", "lipgraft watch runs/base --every 60")


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a train, verify or run command, finished or not.")
    ],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two checks.")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Check once, and exit.")] = False,
    threads: ThreadsOption = None,
) -> None:
    """Follow a running job from another terminal: print a line whenever something changes, until Ctrl-C.

    It only reads files and does not affect the job.
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
