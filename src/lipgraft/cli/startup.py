"""How long the process has been running: loading PyTorch takes seconds, which a time limit must count."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def command_began() -> float:
    """When this command began, by time.monotonic: with the process where that was started for it, otherwise now.

    Calls of `main` inside another program (a test, a notebook) begin when they are made. So do all where the system
    does not tell a process's age.
    """
    now = time.monotonic()
    script = Path(sys.argv[0])
    if script.stem != "lipgraft" and script.parent.name != "lipgraft":
        return now
    return now - _age()


def _age() -> float:
    """Seconds since the process was started; 0 where /proc does not say."""
    try:
        stat = Path("/proc/self/stat").read_text()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        ticks = int(stat.rpartition(")")[2].split()[19])  # proc(5): starttime, in clock ticks after boot
        age = uptime - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(age, 0.0)
