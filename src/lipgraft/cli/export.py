"""lipgraft export CHECKPOINT: a network and its robustness questions, for other verifiers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lipgraft.cli.common import (
    DataOption,
    DataRootOption,
    EpsOption,
    JsonOption,
    ThreadsOption,
    example,
    loading,
    print_json,
    say,
)
from lipgraft.errors import SettingsError, counted
from lipgraft.files import check_folder

EPILOG = example("lipgraft export grafted.safetensors --data cifar10 --eps 2/255 --indices 0:100 --out exported")


def export(
    checkpoint: Annotated[Path, typer.Argument(help="The network to export: a file, or module:function.")],
    data: DataOption,
    eps: EpsOption,
    out: Annotated[Path, typer.Option(help="Folder for the files; created if it is missing.")],
    indices: Annotated[str, typer.Option(help="Test images, such as 0:100 or 3,7,20:30.")] = "0:100",
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds per image, in instances.csv.")] = 300.0,
    data_root: DataRootOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Write net.onnx, one .vnnlib per image, instances.csv and a configuration for alpha-beta-CROWN."""
    with loading():
        from lipgraft import data as datasets
        from lipgraft.cli.model import load_model
        from lipgraft.interop import export_bundle

    dataset = datasets.load(data, root=data_root)
    model = load_model(checkpoint, dataset)
    chosen = parse_indices(indices, len(dataset.x_test))
    x, y = datasets.images(dataset.x_test[chosen]), dataset.y_test[chosen]
    check_folder(out)
    bundle = export_bundle(model, x, y, eps, out, names=[f"{index:05d}" for index in chosen], timeout=timeout)
    if json:
        names = ("folder", "network", "instances", "config")
        paths = {name: str(getattr(bundle, name)) for name in names}
        print_json({**paths, "properties": [str(path) for path in bundle.properties], "indices": chosen, "eps": eps})
        return
    files = f"net.onnx and {counted(len(chosen), 'property', 'properties')}"
    command = f"lipgraft vnnlib --instances {shlex.quote(str(bundle.instances))}"
    say(f"{bundle.folder}: {files}; try `{command}`")


def parse_indices(text: str, count: int) -> list[int]:
    """ "0:3,7" -> [0, 1, 2, 7]. A range may leave out its beginning or end; count: how many images there are."""
    chosen: dict[int, None] = {}
    for part in text.split(","):
        first, colon, last = part.strip().partition(":")
        try:
            start = int(first) if first or not colon else 0
            stop = (int(last) if last else count) if colon else start + 1
        except ValueError:
            raise SettingsError(f"--indices takes numbers and ranges, such as 3,7,20:30, got {text!r}.") from None
        if not 0 <= start < stop <= count:
            raise SettingsError(f"--indices {part.strip()!r} must lie in 0:{count}, the test images, and not be empty.")
        chosen.update(dict.fromkeys(range(start, stop)))
    return list(chosen)
