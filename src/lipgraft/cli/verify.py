"""lipgraft verify: test images of a data set, a property of an ONNX network, or a table of properties."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml

from lipgraft import data as datasets
from lipgraft.cli.common import (
    DATA,
    EPS,
    DataRootOption,
    DeviceOption,
    JsonOption,
    SeedOption,
    ThreadsOption,
    example,
    parse_set,
    print_json,
    print_table,
    resolve_device,
    say,
)
from lipgraft.cli.loading import load_model
from lipgraft.cli.verify_vnnlib import verify_property, verify_table
from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text, check_file, check_folder
from lipgraft.runs import Row, verify_run
from lipgraft.runs.progress import VerifyProgress
from lipgraft.settings import build, to_mapping
from lipgraft.verification import Measures, VerifySettings, measure
from lipgraft.version import __version__

EPILOG = example(
    "lipgraft verify model.safetensors --data cifar10 --eps 2/255 --count 1000 --timeout 300 --out runs/cnn-b",
    "lipgraft verify model.safetensors --data digits --eps 0.05 --out runs/digits --recheck float64 --json",
    "lipgraft verify --onnx net.onnx --vnnlib property.vnnlib --timeout 60 --results result.txt",
    "lipgraft verify --instances exported/instances.csv",
)
# What each way of asking needs, and what else goes with it besides the options of all three.
WAYS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("--instances",), ("--out",)),
    (("--onnx", "--vnnlib"), ("--results",)),
    (("CHECKPOINT", "--data", "--eps", "--out"), ("--start", "--count", "--total-seconds", "--data-root")),
)


def verify(
    checkpoint: Annotated[Path | None, typer.Argument(help="The network whose test images are verified.")] = None,
    data: Annotated[str | None, DATA] = None,
    eps: Annotated[float | None, EPS] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; if it exists, the run goes on where it stopped.")
    ] = None,
    start: Annotated[int | None, typer.Option(min=0, help="Number of the first test image; default 0.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="How many test images; default all that follow.")] = None,
    onnx: Annotated[Path | None, typer.Option(help="A network in an ONNX file, to go with --vnnlib.")] = None,
    vnnlib: Annotated[Path | None, typer.Option(help="The property to verify: prints unsat where it holds.")] = None,
    results: Annotated[Path | None, typer.Option(help="File for that word and the counterexample.")] = None,
    instances: Annotated[
        Path | None, typer.Option(help="A whole instances.csv; results go to --out, by default `results` beside it.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds per image or property; default 300, or what instances.csv says."),
    ] = None,
    total_seconds: Annotated[float | None, typer.Option(help="Wall time for the whole run; default no limit.")] = None,
    recheck: Annotated[str, typer.Option(help="float64: repeat every proof in double precision.")] = "none",
    option: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of the verifier.")
    ] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Prove or refute, image by image, that nothing within eps is classified otherwise; print SA, RA, VA, UNR, Time.

    With --onnx and --vnnlib, print one word for one property; with --instances, decide a whole table of them.
    """
    given = {
        "CHECKPOINT": checkpoint,
        "--data": data,
        "--eps": eps,
        "--out": out,
        "--start": start,
        "--count": count,
        "--total-seconds": total_seconds,
        "--data-root": data_root,
        "--onnx": onnx,
        "--vnnlib": vnnlib,
        "--results": results,
        "--instances": instances,
    }
    _check_way({name for name, value in given.items() if value is not None})
    options: dict[str, Any] = {"timeout": timeout, "total_seconds": total_seconds, "recheck": recheck, "seed": seed}
    chosen = {**{name: value for name, value in options.items() if value is not None}, **parse_set(option)}
    settings = build(VerifySettings, chosen, where="verify")
    where = resolve_device(device)
    if results is not None:
        check_file(results)
    if checkpoint is not None and data is not None and eps is not None and out is not None:
        _verify_images(checkpoint, data, data_root, eps, out, start or 0, count, settings, where, json=json)
        return
    if settings.total_seconds is not None:
        raise SettingsError("total_seconds is for the images of a CHECKPOINT; use --timeout, seconds per property.")
    if onnx is not None and vnnlib is not None:
        verify_property(onnx, vnnlib, results, settings, where, json=json)
    elif instances is not None:
        verify_table(instances, out, settings.timeout if "timeout" in chosen else None, settings, where, json=json)


def _check_way(given: set[str]) -> None:
    """Refuse options that do not go together. given: the names that stand on the command line."""
    needed, more = next((way for way in WAYS if given & set(way[0])), ((), ()))
    present, missing = ([name for name in needed if (name in given) is here] for here in (True, False))
    if not present:
        raise SettingsError(
            "what is to be verified? Give CHECKPOINT, --data, --eps and --out, or --onnx and --vnnlib, or --instances."
        )
    foreign = sorted(given - {*needed, *more})
    if foreign:
        raise SettingsError(f"{present[0]} does not go with {', '.join(foreign)}; they ask different questions.")
    if missing:
        raise SettingsError(f"{present[0]} needs {' and '.join(missing)} too; see `lipgraft verify --help`.")


def _verify_images(
    checkpoint: Path,
    data: str,
    data_root: Path | None,
    eps: float,
    out: Path,
    start: int,
    count: int | None,
    settings: VerifySettings,
    where: torch.device,
    *,
    json: bool,
) -> None:
    check_folder(out)
    dataset = datasets.load(data, root=data_root).to(where)
    model = load_model(checkpoint, dataset, where)
    with VerifyProgress(settings=settings) as progress:
        _write_config(out, checkpoint, data, eps, settings, where)
        rows = verify_run(
            model,
            dataset,
            eps,
            out,
            start=start,
            count=count,
            settings=settings,
            started=progress.started,
            decided=progress.decided,
            watch=progress.bounded,
        )
    measures = measure([row.verdict for row in rows])
    if json:
        print_json(
            {
                "measures": {**asdict(measures), "over": measures.over},
                "images": [_plain(row) for row in rows],
                "run": str(out),
            }
        )
    else:
        _print(measures, f"{checkpoint.name} on {data}, eps {eps:.5g}")


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
        for name in (
            "status",
            "reason",
            "method",
            "margin",
            "seconds",
            "subproblems",
            "unstable",
            "correct",
            "attacked",
        )
    }
    return {"image": row.image, "label": row.label, **facts, "counterexample": v.counterexample is not None}


def _print(m: Measures, title: str) -> None:
    shares = ("-" if share is None else f"{share:.2%}" for share in (m.sa, m.ra, m.va, m.unr))
    time = "-" if m.time is None else f"{m.time:.3g} s"
    print_table(("", "SA", "RA", "VA", "UNR", "Time"), [("", *shares, time), ("of images", *m.over.values())], title)
    reasons = ", ".join(f"{reason} {count}" for reason, count in m.reasons.items())
    unknown = f"unknown {m.unknown}{f' ({reasons})' if reasons else ''}"
    say(f"verified {m.verified}, falsified {m.falsified}, {unknown}, error {m.error}")
