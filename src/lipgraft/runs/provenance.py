"""Where figures come from: versions, commit and hardware, so that they carry their protocol."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import torch

from lipgraft.version import __version__


def versions() -> dict[str, str]:
    """Of the software; the commit too, when lipgraft runs from a git checkout."""
    found = {
        "lipgraft": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": str(np.__version__),
    }
    commit = _commit()
    return {**found, "commit": commit} if commit else found


def hardware(device: torch.device) -> dict[str, str]:
    """Processor, cores, memory, and the GPU when it is the device."""
    found = {
        "device": str(device),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": platform.system(),
    }
    found["threads"] = str(torch.get_num_threads())
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return found


def device_name(device: torch.device) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def made_by(device: torch.device) -> dict[str, str]:
    """The commit, when there is one, and the processor that does the work."""
    found = hardware(device)
    name = found.get("gpu", f"{found['processor']}, {found['cores']} cores")
    commit = _commit()
    return {"commit": commit, "device": name} if commit else {"device": name}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def _commit() -> str:
    """The commit of the checkout that this file is tracked in, with + when files were changed.

    Elsewhere, as in a copy without its history, what LIPGRAFT_COMMIT says.
    """
    here = Path(__file__).resolve()
    known = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    if known is None:
        return os.environ.get("LIPGRAFT_COMMIT", "")
    changed = "+" if _git(here.parent, "status", "--porcelain", "--untracked-files=no") else ""
    return (_git(here.parent, "rev-parse", "--short=12", "HEAD") or "") + changed


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(("git", *arguments), cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
