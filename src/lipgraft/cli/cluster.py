"""The options of commands that can spread their work over a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from lipgraft.cli.common import say
from lipgraft.errors import SettingsError

if TYPE_CHECKING:
    from lipgraft.cluster import Cluster

ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Distribute the work over a Ray cluster: HOST:PORT, or local to start one on this machine.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of workers with --cluster; default one per GPU, or without GPUs one per CPU core."
    ),
]


def check_workers(cluster: str | None, workers: int | None) -> None:
    """Refuse workers without a cluster."""
    if workers is not None and cluster is None:
        raise SettingsError("--workers needs a cluster; add --cluster local to start workers on this machine.")


@contextmanager
def workers_of(cluster: str | None, workers: int | None, device: str, threads: int | None) -> Iterator[Cluster | None]:
    """The workers that were asked for, until the end of the block; None: this process works alone."""
    check_workers(cluster, workers)
    if cluster is None:
        yield None
        return
    from lipgraft.cluster import Cluster

    def notice(text: str) -> None:
        say(text, err=True)

    crew = Cluster(cluster, workers=workers, device=device, threads=threads or 1, notice=notice)
    # Ray tells of a worker's death at length, on standard output, where a program may expect JSON.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), crew:
        yield crew
