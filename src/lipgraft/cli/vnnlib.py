"""lipgraft vnnlib NET SPEC, or --instances TABLE: properties of ONNX networks, in the competition's words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lipgraft.cli.common import (
    ArithmeticOption,
    DeviceOption,
    JsonOption,
    SeedOption,
    SpeaksOfOption,
    ThreadsOption,
    VerifierOption,
    check_own,
    example,
    loading,
    print_json,
    resolve_device,
    say,
    verifier_settings,
)
from lipgraft.cli.startup import command_began
from lipgraft.errors import NumericalError, SettingsError
from lipgraft.files import check_file, check_folder
from lipgraft.settings import build

if TYPE_CHECKING:
    import torch

    from lipgraft.interop import InstanceResult, InstancesSummary, VnnResult
    from lipgraft.verification import VerifySettings

EPILOG = example(
    "lipgraft vnnlib net.onnx property.vnnlib --timeout 60 --results result.txt",
    "lipgraft vnnlib --instances exported/instances.csv",
    "lipgraft vnnlib net.onnx property.vnnlib --certificates proofs && lipgraft check proofs",
)


def vnnlib(
    net: Annotated[Path | None, typer.Argument(metavar="NET", help="A network in an ONNX file.")] = None,
    spec: Annotated[Path | None, typer.Argument(metavar="SPEC", help="The property, in a VNNLIB file.")] = None,
    instances: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE", help="A whole instances.csv, instead of NET and SPEC; continues where it stopped."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds per property; default 300, or what the table says.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the answer and the counterexample of one property.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the results of a table; default `results` beside it.")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for a certificate of every proof, for `lipgraft check`."),
    ] = None,
    arithmetic: ArithmeticOption = None,
    speaks_of: SpeaksOfOption = None,
    set_: VerifierOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Decide properties of ONNX networks and print the answer as in VNN-COMP: unsat, sat, unknown, timeout or error.

    SPEC describes a violation. unsat: no input satisfies it, so the network is safe; sat: an input does, and the
    results file contains it. If a file cannot be used, the command fails and the results file says error.
    """
    with loading():
        from lipgraft.verification import VerifySettings

    _check_question(net, spec, instances, results, out)
    chosen = verifier_settings(
        {"limits.timeout": timeout, "arithmetic": arithmetic, "speaks_of": speaks_of, "attack.seed": seed}, set_
    )
    settings = build(VerifySettings, chosen, where="vnnlib")
    if settings.limits.total_seconds is not None:
        raise SettingsError("total_seconds is for `lipgraft verify`; use --timeout, seconds per property.")
    where = resolve_device(device)
    if certificates is not None:
        check_own(certificates, proofs=True)
        check_folder(certificates)
    if net is not None and spec is not None:
        if results is not None:
            check_file(results)
        _property(net, spec, results, settings, where, certificates, json=json)
    elif instances is not None:
        folder = out or instances.parent / "results"
        given = settings.limits.timeout if "timeout" in chosen.get("limits", {}) else None
        _table(instances, folder, given, settings, where, certificates, json=json)


def _check_question(
    net: Path | None, spec: Path | None, instances: Path | None, results: Path | None, out: Path | None
) -> None:
    """One property with its file, or one table with its folder."""
    if net is not None and instances is not None:
        raise SettingsError("NET and SPEC are one property and --instances is a whole table; give one of the two.")
    if (net is None) != (spec is None):
        raise SettingsError(f"{net} needs a property: `lipgraft vnnlib NET SPEC`.")
    if net is not None and net.suffix == ".safetensors":
        raise SettingsError(f"{net} is a checkpoint; `lipgraft export` writes it as an ONNX file, with properties.")
    if net is None and instances is None:
        raise SettingsError("nothing to decide: give NET and SPEC, or --instances TABLE.")
    if instances is not None and results is not None:
        raise SettingsError("--results is for one property; a table's results go to the folder --out.")
    if net is not None and out is not None:
        raise SettingsError("--out is for a table; the result of one property goes to the file --results.")


def _property(
    net: Path,
    spec: Path,
    results: Path | None,
    settings: VerifySettings,
    device: torch.device,
    certificates: Path | None,
    *,
    json: bool,
) -> None:
    """Print one word; everything else that is for people goes to standard error."""
    from lipgraft.interop import verify_vnnlib

    began = command_began()
    answer = verify_vnnlib(
        net,
        spec,
        settings.limits.timeout,
        device=device,
        results=results,
        settings=settings,
        started=began,
        certificates=certificates,
    )
    if answer.status == "error":
        raise NumericalError(f"{spec.name} of {net.name} could not be decided: {answer.reason}.")
    if json:
        print_json({"onnx": str(net), "vnnlib": str(spec), **_plain(answer)})
        return
    say(answer.status)
    details = [answer.method or "", f"{answer.seconds:.1f} s", answer.reason or "", answer.note or ""]
    say(", ".join(part for part in details if part), err=True)


def _table(
    table: Path,
    folder: Path,
    timeout: float | None,
    settings: VerifySettings,
    device: torch.device,
    certificates: Path | None,
    *,
    json: bool,
) -> None:
    """Print the summary of a whole instances.csv; instances that could not be read make the command fail."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from lipgraft.interop import read_instances, verify_instances
    from lipgraft.locking import held

    read_instances(table)  # a table that cannot be read leaves no folder behind
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(table.name, total=None)

        def show(done: int, total: int, result: InstanceResult) -> None:
            bar.update(task, completed=done, total=total, description=f"{result.vnnlib} {result.status}")

        with held(folder):
            summary = verify_instances(
                table,
                out=folder,
                timeout=timeout,
                device=device,
                settings=settings,
                progress=show,
                certificates=certificates,
            )
    if json:
        print_json(_report(summary))
    else:
        say(f"{summary}, {summary.reused} of them from before; see {summary.folder}")
    for result in summary.results:
        if result.status == "error":
            say(f"error: {result.vnnlib}: {result.reason}", err=True)
    if summary.counts["error"]:
        raise typer.Exit(1)


def _plain(answer: VnnResult) -> dict[str, object]:
    point = answer.counterexample
    values = None if point is None else {"x": point.x.tolist(), "y": point.y.tolist()}
    facts = {name: getattr(answer, name) for name in ("status", "reason", "method", "seconds", "note")}
    return {**facts, "counterexample": values}


def _report(summary: InstancesSummary) -> dict[str, object]:
    return {
        "counts": summary.counts,
        "seconds": summary.seconds,
        "reused": summary.reused,
        "folder": str(summary.folder),
        "instances": [asdict(result) for result in summary.results],
    }
