"""lipgraft reproduce TABLE: the paper's tables, ours beside the published figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from lipgraft.cli.cluster import ClusterOption, WorkersOption, workers_of
from lipgraft.cli.common import (
    DataRootOption,
    DeviceOption,
    JsonOption,
    OwnSeedOption,
    ThreadsOption,
    announcer,
    example,
    loading,
    parse_set,
    print_json,
    printable,
    resolve_device,
    say,
)
from lipgraft.errors import SettingsError, counted

if TYPE_CHECKING:
    from lipgraft.cluster import Cluster
    from lipgraft.report import ExperimentResults
    from lipgraft.runs import Experiment, Workload

EPILOG = example(
    "lipgraft reproduce --list",
    "lipgraft reproduce table1 --only cnn-b --data-root data",
    "lipgraft reproduce all --scale smoke",
    "lipgraft reproduce table2 --only cnn-b/ours-slope --network cnn-b/ours-slope=zoo/cnn-b-cifar10-2-255.safetensors",
    "lipgraft reproduce table1 --cluster local --workers 2",
    "lipgraft reproduce --overview runs/reproduce",
)
ALL = "all"


def reproduce(
    table: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE...", help="Names or numbers of tables, YAML files, or all; --list shows them."),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="full: as in the paper; smoke: the same code on digits, for a test.")
    ] = "full",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for all tables; default runs/reproduce or runs/smoke.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", "--rows", metavar="ROW", help="A run (cnn-b), a row (ours) or cnn-b/ours; repeatable."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of all runs, like certify.count=100; repeatable."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW=FILE",
            help="Measure this network as the row, like cnn-b/ours=model.safetensors, instead of training one; "
            "repeatable.",
        ),
    ] = None,
    seed: OwnSeedOption = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    cluster: ClusterOption = None,
    workers: WorkersOption = None,
    show: Annotated[bool, typer.Option("--list", help="List the tables and their work, and exit.")] = False,
    overview: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Compare the results in DIR/*/*.json with the whole paper, in DIR/README.md with a figure, and exit.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the experiments of the paper and compare their figures with the published ones.

    Finished stages are kept, and stages that experiments share run once: after Ctrl-C or a crash, the same command
    continues where it stopped. The folder of each table contains results.json and table.md with all finished rows,
    updated after every row, and report.html; with --seed 1 that folder is NAME-seed1. With --cluster, each worker
    computes one row at a time.
    """
    with loading():
        from lipgraft import runs
        from lipgraft.report import experiment_summary

    given = {"seed": seed, "threads": threads}
    changes = {**parse_set(set_), **{key: value for key, value in given.items() if value is not None}}
    if show:
        _list(scale, changes, json)
        return
    if overview is not None:
        _overview(overview, json)
        return
    if not table:
        raise SettingsError(f"name a table. Known: {', '.join(runs.experiment_names())}, or {ALL}.")
    names = [name for one in table for name in (runs.experiment_names() if one == ALL else [one])]
    # All are read before the first one runs: a mistake in the last one is found at once.
    experiments = [runs.load_experiment(name, scale, changes) for name in names]
    if network:
        experiments = runs.with_networks(experiments, dict(map(_row_and_file, network)))
    if only:
        experiments = runs.chosen(experiments, [name for part in only for name in part.split(",")])
    if cluster is not None:
        from lipgraft.cluster.rows import check_rows

        for experiment in experiments:
            check_rows(experiment)
    folder = out or Path("runs") / ("smoke" if scale == "smoke" else "reproduce")
    console = Console(stderr=True, highlight=False)

    found = []
    with workers_of(cluster, workers, device, threads) as crew:
        for experiment in experiments:
            console.print(printable(experiment.title), style="bold", markup=False, soft_wrap=True)
            if crew is not None:
                found.append(_by_workers(crew, experiment, folder, data_root, console))
                continue
            results = runs.reproduce(
                experiment,
                folder,
                device=resolve_device(device),
                data_root=data_root,
                progress=True,
                announce=announcer(),
            )
            found.append(results)
            if not json:
                _show(results, folder / experiment.folder)
    if crew is not None and not json:  # what is printed while there are workers does not reach the terminal
        for experiment, results in zip(experiments, found, strict=True):
            _show(results, folder / experiment.folder)
    if json:
        print_json([experiment_summary(results) for results in found])


def _row_and_file(text: str) -> tuple[str, str]:
    row, equals, file = text.partition("=")
    if not (row and equals and file):
        raise SettingsError(f"--network must be ROW=FILE, like cnn-b/ours=model.safetensors, got {text!r}.")
    return row, file


def _by_workers(
    crew: Cluster, experiment: Experiment, folder: Path, data_root: Path | None, console: Console
) -> ExperimentResults:
    """All rows in one table that renews itself on a terminal, and a line for each elsewhere."""
    from lipgraft.cluster.rows import RUNS, WAITS, reproduce_rows

    states: dict[str, tuple[str, float]] = {}

    def table() -> Table:
        now, drawn = time.monotonic(), Table("row", "", "s", box=None, pad_edge=False)
        for row, (state, since) in states.items():
            drawn.add_row(Text(printable(row)), state, f"{now - since:.0f}" if state == RUNS else "")
        return drawn

    with Live(get_renderable=table, console=console, refresh_per_second=1) if console.is_terminal else nullcontext():

        def told(row: str, state: str) -> None:
            states[row] = state, time.monotonic()
            if not console.is_terminal and state != WAITS:
                console.print(printable(f"· {row} {state}"), markup=False, soft_wrap=True)

        return reproduce_rows(crew, experiment, folder, data_root=data_root, told=told)


def _show(results: ExperimentResults, folder: Path) -> None:
    from lipgraft.report import COLUMNS, heads, published_cell, rows, texts, undecided

    console = Console()
    for run in results.runs:
        title = printable(f"{run.title}, eps {run.radius} (in brackets: the paper)")
        table = Table(Column("Model", overflow="fold"), title=Text(title), title_justify="left")
        for head in heads(run):
            table.add_column(head.replace(" of ", "\nof "), justify="right", overflow="fold")
        for row in rows(run):
            table.add_row(*(Text(printable(text)) for text in (row.model.title, *texts(run, row))))
        for title, figures in run.literature.items():
            cells = (f"({cell})" if (cell := published_cell(figures, column)) else "" for column in COLUMNS)
            table.add_row(Text(printable(title)), *cells, style="dim")
        console.print(table)
        console.print(printable(undecided(run)), markup=False, highlight=False)
    say(f"Table: {(folder / 'table.md').resolve()}")
    say(f"Report: {(folder / 'report.html').resolve()}")


def _overview(folder: Path, json: bool) -> None:
    from lipgraft import runs

    found = runs.write_overview(folder)
    page = (folder / "README.md").resolve()
    if json:
        rows = [{"key": row.key, "findings": [vars(one) for one in row.found]} for row in found.rows]
        print_json({"page": str(page), "rows": rows})
        return
    measured = sum(bool(row.found) for row in found.rows)
    say(f"{measured} of {len(found.rows)} published rows are measured.")
    say(f"Page: {page}")


def _list(scale: str, changes: Mapping[str, Any], json: bool) -> None:
    """Every experiment and its work; the last line is the work of all together, what they share counted once."""
    from lipgraft import runs

    experiments = [runs.load_experiment(name, scale, changes) for name in runs.experiment_names()]
    each = [(one, runs.workload([one])) for one in experiments]
    if json:
        print_json([{"name": one.name, "title": one.title, "about": one.about, **vars(work)} for one, work in each])
        return
    lines = [(one.name, one.title, work) for one, work in each]
    lines.append((ALL, "All of them; what they share is made once", runs.workload(experiments)))
    width = max(len(name) for name, _, _ in lines)
    for name, title, work in lines:
        say(f"{name:<{width}}  {title}. {_words(work)}")


def _words(work: Workload) -> str:
    trainings = f"{counted(work.pretrainings, 'pre-training')} and {counted(work.finetunings, 'fine-tuning')}"
    return f"{trainings}, {counted(work.epochs, 'epoch')}; {counted(work.images, 'image')} to certify."
