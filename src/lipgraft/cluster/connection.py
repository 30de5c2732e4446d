"""Reaching a Ray cluster, or starting one on this machine; whatever is wrong with it becomes one sentence."""

from __future__ import annotations

import importlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lipgraft.errors import LipgraftError, SettingsError

LOCAL = "local"
REACH_SECONDS = 5.0
"""How long an address may take to answer; Ray itself would try for more than a minute."""


class ClusterError(LipgraftError):
    """A cluster cannot be reached, or its workers cannot be used."""


def need_ray() -> Any:
    """Ray, from the packages that `pip install ray` brings."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ClusterError("--cluster needs the ray package: pip install ray.") from None


@contextmanager
def connected(address: str, cpus: int | None) -> Iterator[Any]:
    """Ray, connected until the end of the block. A process that is connected already stays so, whatever the address.

    address: "local" starts a cluster on this machine, with this many CPUs (None: all), which ends with the block.
    """
    ray = need_ray()
    if address != LOCAL:
        _check_reachable(address)
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address, cpus)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


def _connect(ray: Any, address: str, cpus: int | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a private cluster has nothing to tell anybody
        os.environ.setdefault("RAY_worker_niceness", "0")  # else the work would stand behind everything else here
        quiet |= {"include_dashboard": False, "num_cpus": cpus}
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(f"Ray could not use the cluster {address!r}: {_first_line(error)}") from error


def _check_reachable(address: str) -> None:
    match = re.fullmatch(r"(?:ray://)?\[?(?P<host>[^/\[\]]+)\]?:(?P<port>\d{1,5})", address)
    if match is None:
        raise SettingsError(f"--cluster takes local or the HOST:PORT of a Ray cluster, got {address!r}.")
    try:
        socket.create_connection((match["host"], int(match["port"])), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {address} ({error}); `ray start --head` on one machine starts one and says its "
            "address."
        ) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
