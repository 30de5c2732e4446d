"""lipgraft report RUN: the table and one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lipgraft import pipeline
from lipgraft.cli.common import JsonOption, example, print_json
from lipgraft.report import COLUMNS, RunResults, headline, rows, summary

EPILOG = example("lipgraft report runs/quickstart", "lipgraft report runs/quickstart --json")


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A directory made by `lipgraft run` or `lipgraft verify --out`.")
    ],
    json: JsonOption = False,
) -> None:
    """Print the table of a finished run, and build its report.html again."""
    show(pipeline.report(run), run, json)


def show(results: RunResults, run: Path, json: bool) -> None:
    """The results of a run, for a program or for people."""
    page = run / "report.html"
    if json:
        print_json({**summary(results), "run": str(run), "report": str(page)})
        return
    paper = " (in brackets: the paper)" if any(model.published for model in results.models) else ""
    table = Table("Model", title=f"{results.title}, eps {results.eps:.4g}{paper}")
    for column in COLUMNS:
        table.add_column(column.head, justify="right")
    for row in rows(results):
        table.add_row(row.model.title, *(_text(cell.text, cell.paper) for cell in row.cells))
    console = Console()
    console.print(table)
    console.print(headline(results), highlight=False)
    typer.echo(f"Report: {page.resolve()}")


def _text(ours: str, paper: str) -> str:
    return f"{ours} ({paper})" if paper else ours
