"""What the commands share: options, the device, recipes, tables and JSON."""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from lipgraft.errors import FileError, SettingsError
from lipgraft.files import written
from lipgraft.interrupts import held_back
from lipgraft.settings import MOST_SEED, MOST_THREADS, check_eps, over

if TYPE_CHECKING:
    import torch


@contextmanager
def loading() -> Iterator[None]:
    """For imports that bring PyTorch: Ctrl-C waits, which they do not survive whole.

    Looking for garbage among all that they make would take a fifth of a second.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        with held_back():
            yield
    finally:
        if before:
            gc.enable()


def parse_eps(text: str | float) -> float:
    """The value of --eps: a number or a fraction, in [0, 1], as the images of every data set are."""
    eps = check_eps(text)
    if eps > 1:
        raise SettingsError(f"eps must be in [0, 1], in raw pixels (8/255, not 8), got {text}.")
    return eps


def resolve_device(name: str) -> torch.device:
    """auto: the GPU when there is one; cpu; cuda or cuda:N."""
    with loading():
        import torch

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


def place_of(device: torch.device) -> str:
    """Where work runs, in words."""
    return "this GPU" if device.type == "cuda" else "this CPU"


DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda; auto uses a GPU if there is one.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="The same seed gives the same result.")]
OwnSeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, max=MOST_SEED, help="Seed, instead of the recipe's.")
]


def use_threads(count: int | None) -> int | None:
    """The value of --threads, put to use at once."""
    if count is not None:
        with loading():
            import torch

        torch.set_num_threads(count)
    return count


ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=MOST_THREADS,
        callback=use_threads,
        help="CPU threads; default PyTorch's choice, one per core.",
    ),
]
EpsOption = Annotated[
    float,
    typer.Option("--eps", parser=parse_eps, metavar="EPS", help="Radius in raw [0,1] pixels, such as 0.1 or 2/255."),
]
DataOption = Annotated[
    str,
    typer.Option("--data", help="Data set: a name from `lipgraft data list`, your own .npz file, or module:function."),
]
DataRootOption = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder with the data sets; default LIPGRAFT_DATA, else the user's cache."),
]
ArithmeticOption = Annotated[
    str | None,
    typer.Option("--arithmetic", help="sound: proofs account for their own rounding (default); fast: they do not."),
]
SpeaksOfOption = Annotated[
    str | None,
    typer.Option(
        "--speaks-of",
        help="What a proof is about. real: the network over the real numbers (default); float32: the "
        "network as float32 hardware evaluates it, in any order.",
    ),
]
VerifierOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting of the verifier, such as branch.batch=512; repeatable."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def example(*lines: str) -> str:
    """The epilog of a command's help: its examples, one per paragraph, so that lines are not joined."""
    return "\n\n".join(("Example:" if len(lines) == 1 else "Examples:", *lines))


def parse_set(pairs: Sequence[str] | None) -> dict[str, Any]:
    """The values of --set: ["pool=0.9", "lr-root=[2, 0]"] -> {"pool": 0.9, "lr_root": [2, 0]}, as YAML reads them.

    Names and types are for the settings to check.
    """
    import yaml

    from lipgraft import yaml_text

    settings = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set takes NAME=VALUE, such as --set batch=512, got {pair!r}.")
        try:
            settings[name.strip().replace("-", "_")] = yaml_text.load(value)
        except yaml.YAMLError:
            raise SettingsError(f"--set {pair!r} has a value that cannot be read.") from None
    return settings


def verifier_settings(options: Mapping[str, Any], pairs: Sequence[str] | None) -> dict[str, Any]:
    """The verifier's settings in groups: a command's own options by dotted path, then those of --set over them."""
    from lipgraft.verification.settings import grouped

    given = {name: value for name, value in options.items() if value is not None}
    return over(grouped(given), grouped(parse_set(pairs), "--set"))


def printable(text: str) -> str:
    """The text without what a terminal would obey (escape sequences) or could not show (half characters)."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "", text)


def say(text: str, *, err: bool = False) -> None:
    """A line for people. Names and titles in it may come from anybody's files."""
    typer.echo(printable(text), err=err)


def announcer() -> Callable[[str, bool], None]:
    """What tells people on standard error which stage of a run begins, or was done before."""
    console = Console(stderr=True, highlight=False)

    def announce(what: str, done: bool) -> None:
        text = printable(f"· {what}{', done before' if done else ''}")
        console.print(text, style="dim" if done else "", markup=False, soft_wrap=True)

    return announce


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
    heads = [Column(name, overflow="fold") for name in columns]  # a narrow terminal breaks a cell, and cuts off nothing
    table = Table(*heads, title=None if title is None else Text(printable(title)))
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    Console().print(table)


def check_own(folder: Path, kind: str = "verify", *, proofs: bool = False) -> None:
    """Refuse a folder in which results would mix with something else: another command's run, networks, certificates.

    kind: the key that the config.yaml of this command's runs has. proofs: it is a folder for certificates.
    """
    config = folder / "config.yaml"
    with written(folder):
        known, ours = config.is_file(), (folder / "results.sqlite").exists()
    if known:
        if kind not in read_yaml(config):
            raise FileError(f"{folder} holds the results of another command (see {config}); give another folder.")
    elif kind == "verify" and not ours:
        for files, what in (("*.safetensors", "networks"), *(() if proofs else (("network.onnx", "certificates"),))):
            if any(folder.glob(files)):
                raise FileError(f"{folder} holds {what}; give another folder, so that results do not mix with them.")


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file."""
    from lipgraft import yaml_text

    content = yaml_text.read(path, str(path))
    if not isinstance(content, Mapping):
        raise SettingsError(f"{path} must hold a mapping of settings at its top level.")
    return content
