"""lipgraft verify --onnx NET --vnnlib SPEC, and --instances TABLE: the words of the verification competition."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lipgraft.cli.common import print_json
from lipgraft.cli.startup import command_began
from lipgraft.errors import NumericalError
from lipgraft.interop import InstanceResult, InstancesSummary, VnnResult, verify_instances, verify_vnnlib
from lipgraft.verification import VerifySettings


def verify_property(
    onnx: Path, vnnlib: Path, results: Path | None, settings: VerifySettings, device: torch.device, *, json: bool
) -> None:
    """Print one word; everything else that is for people goes to standard error."""
    began = command_began()
    answer = verify_vnnlib(
        onnx, vnnlib, settings.timeout, device=device, results=results, settings=settings, started=began
    )
    if answer.status == "error":
        raise NumericalError(f"{vnnlib.name} of {onnx.name} could not be decided: {answer.reason}.")
    if json:
        print_json({"onnx": str(onnx), "vnnlib": str(vnnlib), **_plain(answer)})
        return
    typer.echo(answer.status)
    details = [answer.method or "", f"{answer.seconds:.1f} s", answer.reason or ""]
    typer.echo(", ".join(part for part in details if part), err=True)


def verify_table(
    table: Path,
    out: Path | None,
    timeout: float | None,
    settings: VerifySettings,
    device: torch.device,
    *,
    json: bool,
) -> None:
    """Print the summary of a whole instances.csv; instances that could not be read make the command fail."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(table.name, total=None)

        def show(done: int, total: int, result: InstanceResult) -> None:
            bar.update(task, completed=done, total=total, description=f"{result.vnnlib} {result.status}")

        summary = verify_instances(table, out=out, timeout=timeout, device=device, settings=settings, progress=show)
    if json:
        print_json(_report(summary))
    else:
        typer.echo(f"{summary}, {summary.reused} of them from before; see {summary.folder}")
    for result in summary.results:
        if result.status == "error":
            typer.echo(f"error: {result.vnnlib}: {result.reason}", err=True)
    if summary.counts["error"]:
        raise typer.Exit(1)


def _plain(answer: VnnResult) -> dict[str, object]:
    point = answer.counterexample
    values = None if point is None else {"x": point.x.tolist(), "y": point.y.tolist()}
    facts = {name: getattr(answer, name) for name in ("status", "reason", "method", "seconds")}
    return {**facts, "counterexample": values}


def _report(summary: InstancesSummary) -> dict[str, object]:
    return {
        "counts": summary.counts,
        "seconds": summary.seconds,
        "reused": summary.reused,
        "folder": str(summary.folder),
        "instances": [asdict(result) for result in summary.results],
    }
