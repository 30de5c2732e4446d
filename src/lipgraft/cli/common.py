"""What the commands share: options, the device, recipes, tables and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml
from rich.console import Console
from rich.table import Table

from lipgraft.errors import SettingsError
from lipgraft.settings import check_eps


def parse_eps(text: str | float) -> float:
    """The value of --eps: a number or a fraction, finite and >= 0."""
    return check_eps(text)


def resolve_device(name: str) -> torch.device:
    """auto: the GPU when there is one; cpu; cuda or cuda:N."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"unknown device {name!r}; use auto, cpu or cuda.") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"the device {name!r} is not supported; use auto, cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError("there is no usable CUDA device on this machine; use --device cpu.")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise SettingsError(f"there is no {name}; this machine has {torch.cuda.device_count()} CUDA devices.")
    return device


DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda; auto takes the GPU when there is one.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same result.")]
EPS: Any = typer.Option(
    "--eps", parser=parse_eps, metavar="EPS", help="Radius in raw [0,1] pixels, such as 0.1 or 2/255."
)
DATA: Any = typer.Option("--data", help="Name of the data set; `lipgraft data list` shows them.")
EpsOption = Annotated[float, EPS]
DataOption = Annotated[str, DATA]
DataRootOption = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder with the data sets; default LIPGRAFT_DATA, else the user's cache."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


def example(*lines: str) -> str:
    """The epilog of a command's help: its examples, one per paragraph, so that lines are not joined."""
    return "\n\n".join(("Example:" if len(lines) == 1 else "Examples:", *lines))


def parse_set(pairs: Sequence[str] | None) -> dict[str, Any]:
    """The values of --set: ["pool=0.9", "lr-root=[2, 0]"] -> {"pool": 0.9, "lr_root": [2, 0]}, as YAML reads them.

    Names and types are for the settings to check.
    """
    settings = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set takes NAME=VALUE, such as --set batch=512, got {pair!r}.")
        try:
            settings[name.strip().replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SettingsError(f"--set {pair!r} has a value that cannot be read.") from None
    return settings


def print_json(value: Any) -> None:
    """One JSON document on standard output; NaN and infinity, which JSON does not have, become null."""
    typer.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table for people; numbers should come as text, with the digits that are to be shown."""
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console().print(table)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"{path} is not valid YAML: {reason}.") from None
    if not isinstance(content, Mapping):
        raise SettingsError(f"{path} must hold a mapping of settings at its top level.")
    return content
