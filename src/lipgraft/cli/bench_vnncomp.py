"""lipgraft bench vnncomp | vnncomp-page"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from json import loads
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lipgraft.cli.bench_file import FileOption, keep, or_dash, write
from lipgraft.cli.cluster import ClusterOption, WorkersOption, workers_of
from lipgraft.cli.common import (
    DeviceOption,
    SeedOption,
    ThreadsOption,
    VerifierOption,
    example,
    loading,
    print_table,
    resolve_device,
    say,
    verifier_settings,
)
from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text, check_file

if TYPE_CHECKING:
    from lipgraft.interop import InstanceResult

EPILOG = example(
    "lipgraft bench vnncomp vnncomp2022_benchmarks --results vnncomp2022_results --limit 60 --json 2022.json",
    "lipgraft bench vnncomp vnncomp2025_benchmarks --benchmark acasxu_2023 --share 5 --device cuda",
)
PAGE_EPILOG = example(
    "lipgraft bench vnncomp-page 2021.json 2022.json 2025.json --note remarks.txt --out scoreboard.md"
)


def vnncomp(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A checkout of a benchmark repository.")],
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A checkout of the results repository, to compare with.")
    ] = None,
    limit: Annotated[
        list[float] | None,
        typer.Option(
            min=0.001,
            help="Most seconds per instance; default the competition's. Repeat it to run the open "
            "instances again, with another limit.",
        ),
    ] = None,
    share: Annotated[int, typer.Option(min=1, help="With N, take every N-th instance of each benchmark.")] = 1,
    benchmark: Annotated[
        list[str] | None, typer.Option("--benchmark", help="A benchmark by name; repeatable. Default: all.")
    ] = None,
    total_seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds for the whole run, shared evenly by the benchmarks; default no limit."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the answers; the same command continues where it stopped.")
    ] = Path("vnncomp-results"),
    set_: VerifierOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    cluster: ClusterOption = None,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    json: FileOption = None,
) -> None:
    """Decide the instances of VNN-COMP, and compare the answers with those of other verifiers.

    Runs in one process or, with --cluster, one instance at a time on each worker, which reads the files itself.
    """
    with loading():
        import torch

        from lipgraft.bench.published import read_published
        from lipgraft.bench.vnncomp import bench_vnncomp, find_benchmarks
        from lipgraft.locking import held
        from lipgraft.report.scoreboard import best_tool
        from lipgraft.settings import build
        from lipgraft.verification import VerifySettings

    settings = build(VerifySettings, verifier_settings({"attack.seed": seed}, set_), where="bench vnncomp")
    place = resolve_device(device if cluster is None else "cpu")
    published = [] if results is None else read_published(results)
    found = find_benchmarks(folder.absolute(), benchmark or ())
    console = Console(stderr=True)
    began = time.monotonic()
    told = {"title": folder.name, "limits": limit or [], "every": share, "seed": seed, "set": list(set_ or [])}

    def record(rows: list[dict[str, Any]]) -> None:
        if json is not None:
            write(json, place, told, rows)

    with (
        held(out),
        workers_of(cluster, workers, device, threads) as crew,
        console.status("starting") if console.is_terminal else nullcontext() as status,
    ):
        decide = None
        if crew is not None:
            from lipgraft.cluster.instances import deciding

            decide, place = deciding(crew, settings), torch.device("cuda" if crew.on_gpu else "cpu")

        def show(name: str, done: int, total: int, result: InstanceResult) -> None:
            if status is not None:
                status.update(f"{name}: {done} of {total}, {result.status} in {result.seconds:.1f} s")

        rows = bench_vnncomp(
            found,
            out,
            published=published,
            limits=limit or (inf,),
            every=share,
            total_seconds=inf if total_seconds is None else total_seconds,
            device=place,
            settings=settings,
            progress=show,
            record=record,
            decide=decide,
        )
    columns = ("benchmark", "here", "asked", "solved", "wrong", "s", "best", "solved", "s")
    lines = []
    for row in rows:
        best = best_tool(row)
        theirs: Mapping[str, Any] = row["tools"][best] if best else {"solved": "-", "median": None}
        mine = [row[key] for key in ("name", "here", "asked", "solved", "wrong")]
        lines.append([*mine, or_dash(row["median"], "{:.2f}"), best or "-", theirs["solved"],
                      or_dash(theirs["median"], "{:.2f}")])  # fmt: skip
    print_table(columns, lines, title=f"{folder.name}, {place.type}, {time.monotonic() - began:.0f} s")
    for row in rows:
        for reason, count in row["errors"].items():
            say(f"{row['name']}: {count} refused: {reason}")
    asked, solved, wrong = (sum(row[key] for row in rows) for key in ("asked", "solved", "wrong"))
    say(f"{solved} of {asked} solved, {wrong} wrong; the answers are in {out}")
    keep(json, place, told, rows)


def vnncomp_page(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files that `bench vnncomp --json` wrote.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page; the plot is written beside it, as an SVG.")],
    note: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A note for the readers of the page, in Markdown.")
    ] = None,
    threads: ThreadsOption = None,
) -> None:
    """Write the scoreboard as a Markdown page with a cactus plot. Files of one benchmark become one row."""
    with loading():
        from lipgraft.report.scoreboard import cactus, scoreboard_page

    records = [_record(file) for file in files]
    words = "" if note is None else _text(note).strip()
    figure = check_file(out).with_suffix(".svg")
    atomic_write_text(figure, cactus(records))
    atomic_write_text(out, scoreboard_page(records, figure.name, words))
    say(f"written to {out} and {figure}")


def _record(file: Path) -> Mapping[str, Any]:
    """A file of `bench vnncomp --json`."""
    try:
        found = loads(_text(file))
    except ValueError:
        found = None
    if not isinstance(found, dict) or "title" not in found.get("settings", {}):
        raise SettingsError(f"{file} is not a file that `lipgraft bench vnncomp --json` wrote.")
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
