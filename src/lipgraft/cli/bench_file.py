"""The file of figures that every benchmark writes with --json."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipgraft.cli.common import say
from lipgraft.files import atomic_write_text, check_file

if TYPE_CHECKING:
    import torch


def _writable(file: Path | None) -> Path | None:
    """The value of --json, checked before the measurement that it gets."""
    return None if file is None else check_file(file)


FileOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", callback=_writable, help="Also write the figures to this file."),
]


def keep(path: Path | None, device: torch.device, settings: Mapping[str, Any], results: Any) -> None:
    """Write the figures and say so, if there is a file for them."""
    if path is not None:
        write(path, device, settings, results)
        say(f"written to {path}")


def write(path: Path, device: torch.device, settings: Mapping[str, Any], results: Any) -> None:
    """The figures, with the settings, the versions and the machine that they belong to."""
    from lipgraft.runs.provenance import hardware, versions

    found = {"versions": versions(), "hardware": hardware(device), "settings": dict(settings), "results": results}
    atomic_write_text(path, dumps(found, indent=2, allow_nan=False) + "\n")


def or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
