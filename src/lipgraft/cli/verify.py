"""lipgraft verify CHECKPOINT: certify the first test images; resumes when the run exists."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml

from lipgraft import data as datasets
from lipgraft import models
from lipgraft.cli.common import (
    DataOption,
    DataRootOption,
    DeviceOption,
    EpsOption,
    JsonOption,
    SeedOption,
    example,
    print_json,
    print_table,
    resolve_device,
)
from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text
from lipgraft.settings import build, to_mapping
from lipgraft.verify.measures import Measures, measure
from lipgraft.verify.progress import Progress
from lipgraft.verify.runs import verify_run
from lipgraft.verify.settings import VerifySettings
from lipgraft.verify.store import Row
from lipgraft.version import __version__

EPILOG = example(
    "lipgraft verify model.safetensors --data cifar10 --eps 2/255 --count 1000 --timeout 300 --out runs/cnn-b",
    "lipgraft verify model.safetensors --data digits --eps 0.05 --out runs/digits --recheck float64 --json",
)


def verify(
    checkpoint: Annotated[Path, typer.Argument(help="The network to verify.")],
    data: DataOption,
    eps: EpsOption,
    out: Annotated[Path, typer.Option(help="Folder of the run; if it exists, the run goes on where it stopped.")],
    count: Annotated[int | None, typer.Option(min=1, help="First so many test images; default all.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds of device time per image, after the attack.")] = 300.0,
    total_seconds: Annotated[float | None, typer.Option(help="Wall time for the whole run; default no limit.")] = None,
    recheck: Annotated[str, typer.Option(help="float64: repeat every proof in double precision.")] = "none",
    option: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of the verifier.")
    ] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Prove or refute, image by image, that nothing within eps is classified otherwise; print SA, RA, VA, UNR, Time."""
    given: dict[str, Any] = {"timeout": timeout, "total_seconds": total_seconds, "recheck": recheck, "seed": seed}
    settings = build(VerifySettings, {**given, **_assignments(option or [])}, where="verify")
    where = resolve_device(device)
    model = models.load(checkpoint, where)
    dataset = datasets.load(data, root=data_root).to(where)
    with Progress() as progress:
        _write_config(out, checkpoint, data, eps, settings, where)
        rows = verify_run(
            model,
            dataset,
            eps,
            out,
            count=count,
            settings=settings,
            started=progress.started,
            decided=progress.decided,
            watch=progress.bounded,
        )
    measures = measure([row.verdict for row in rows])
    if json:
        print_json({"measures": asdict(measures), "images": [_plain(row) for row in rows], "run": str(out)})
    else:
        _print(measures, f"{checkpoint.name} on {data}, eps {eps:.5g}")


def _assignments(options: list[str]) -> dict[str, Any]:
    """["batch=512", ...] -> {"batch": 512, ...}; values are read as YAML reads them."""
    out: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise SettingsError(f"--set takes NAME=VALUE, such as --set batch=512, got {option!r}.")
        try:
            out[name.replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SettingsError(f"--set {option!r} has a value that cannot be read.") from None
    return out


def _write_config(
    out: Path, checkpoint: Path, data: str, eps: float, settings: VerifySettings, device: torch.device
) -> None:
    """What the run was started with, for people; the results file itself refuses other settings."""
    file = out / "config.yaml"
    if file.exists():
        return
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    about = {"lipgraft": __version__, "torch": str(torch.__version__), "device": hardware}
    run = {"checkpoint": str(checkpoint), "data": data, "eps": eps, "verify": to_mapping(settings)}
    atomic_write_text(file, yaml.safe_dump({**run, "versions": about}, sort_keys=False))


def _plain(row: Row) -> dict[str, Any]:
    """A row for JSON; the counterexample stays in the results file."""
    v = row.verdict
    facts = {
        name: getattr(v, name)
        for name in ("status", "reason", "method", "margin", "seconds", "subproblems", "unstable")
    }
    return {"image": row.image, "label": row.label, **facts, "counterexample": v.counterexample is not None}


def _print(m: Measures, title: str) -> None:
    time = "-" if m.time is None else f"{m.time:.3g} s"
    unr = "-" if m.unr is None else f"{m.unr:.2%}"
    print_table(
        ("images", "SA", "RA", "VA", "UNR", "Time"),
        [(m.count, f"{m.sa:.2%}", f"{m.ra:.2%}", f"{m.va:.2%}", unr, time)],
        title,
    )
    typer.echo(f"verified {m.verified}, falsified {m.falsified}, unknown {m.unknown}, error {m.error}")
