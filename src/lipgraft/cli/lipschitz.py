"""lipgraft lipschitz CHECKPOINT: local Lipschitz constants around the test images."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipgraft.cli import names
from lipgraft.cli.common import (
    DataOption,
    DataRootOption,
    DeviceOption,
    EpsOption,
    JsonOption,
    SeedOption,
    ThreadsOption,
    example,
    loading,
    place_of,
    print_json,
    print_table,
    resolve_device,
)
from lipgraft.errors import DataError, SettingsError, counted, unknown_name
from lipgraft.progress import bar

if TYPE_CHECKING:
    from torch import Tensor, nn

EPILOG = example(
    "lipgraft lipschitz model.safetensors --data cifar10 --eps 2/255 --count 200",
    "lipgraft lipschitz model.safetensors --data digits --eps 0.05 --method jacobian --units pixel --json",
)


@dataclass(frozen=True)
class Line:
    """One notion in one unit. values: one number per image."""

    method: str
    units: str
    values: tuple[float, ...]
    seconds: float

    def summary(self) -> dict[str, float]:
        import torch

        values = torch.tensor(self.values, dtype=torch.float64)
        middle = values.sort().values[[(len(values) - 1) // 2, len(values) // 2]].mean()
        return {"mean": float(values.mean()), "median": float(middle), "max": float(values.max())}


def lipschitz(
    checkpoint: Annotated[Path, typer.Argument(help="The network: a file, or module:function.")],
    data: DataOption,
    eps: EpsOption,
    count: Annotated[int, typer.Option(min=1, help="Number of test images, from the first.")] = 100,
    correct: Annotated[bool, typer.Option("--correct", help="Use only images that are classified correctly.")] = False,
    method: Annotated[str, typer.Option(help=f"all, or one of: {', '.join(names.NOTIONS)}.")] = "all",
    units: Annotated[str, typer.Option(help=f"both, or one of: {', '.join(names.UNITS)}.")] = "both",
    bounds: Annotated[str, typer.Option(help="Bound method for neurons and outputs.")] = "crown",
    batch: Annotated[int | None, typer.Option(min=1, help="Images per batch; default depends on the device.")] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Bound the local Lipschitz constant (maximum norms) around each image; print mean, median and maximum."""
    with loading():
        import torch

        from lipgraft import data as datasets
        from lipgraft.cli.model import load_model
        from lipgraft.sensitivity import NOTIONS, UNITS
        from lipgraft.sensitivity import lipschitz as constants

    methods = _chosen(method, "all", "notion of the Lipschitz constant", list(NOTIONS))
    scales = _chosen(units, "both", "units", list(UNITS))
    where = resolve_device(device)
    dataset = datasets.load(data, root=data_root)
    model = load_model(checkpoint, dataset, where)
    x, y = datasets.images(dataset.x_test[:count].to(where)), dataset.y_test[:count].to(where)
    index = torch.arange(len(x), device=where)
    if correct:
        index = _correct(model, x, y)
    options: dict[str, Any] = {"bounds": bounds, "batch": batch, "seed": seed}
    lines = []
    for name in methods:
        for unit in scales:
            began = time.perf_counter()
            with bar(f"Lipschitz constants ({name})", place=place_of(where)) as progress:
                found = constants(model, x[index], eps, name, units=unit, progress=progress, **options)
            values = tuple(found.tolist())
            lines.append(Line(name, unit, values, time.perf_counter() - began))
    if json:
        print_json(
            {"eps": eps, "bounds": bounds, "indices": index.tolist(), "results": [_record(line) for line in lines]}
        )
        return
    images = counted(len(index), "image")
    title = f"{checkpoint.name}, local Lipschitz constants, eps {eps:.5g}, {images}, bounds by {bounds}"
    rows = [
        [line.method, line.units, *(f"{v:.2f}" for v in line.summary().values()), f"{line.seconds:.1f}"]
        for line in lines
    ]
    print_table(("notion", "units", "mean", "median", "max", "seconds"), rows, title=title)


def _chosen(name: str, everything: str, kind: str, known: list[str]) -> list[str]:
    if name == everything:
        return sorted(known)
    if name not in known:
        raise SettingsError(unknown_name(kind, name, [*known, everything]))
    return [name]


def _correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The indices of the images that the model classifies correctly; none is an error."""
    from lipgraft.runs.measurements import correct as correctly_classified

    index = correctly_classified(model, x, y)
    if len(index) == 0:
        raise DataError(f"none of the {len(x)} images is classified correctly; leave out --correct or raise --count.")
    return index


def _record(line: Line) -> dict[str, Any]:
    return {
        "method": line.method,
        "units": line.units,
        **line.summary(),
        "values": line.values,
        "seconds": line.seconds,
    }
