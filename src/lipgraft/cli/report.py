"""lipgraft report RUN: the table and one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from lipgraft.cli.common import JsonOption, ThreadsOption, example, loading, print_json, printable, say

if TYPE_CHECKING:
    from lipgraft.report import RunResults

EPILOG = example("lipgraft report runs/quickstart", "lipgraft report runs/quickstart --json")


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A directory made by `lipgraft run` or `lipgraft verify --out`.")
    ],
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Print the table of a finished run, and build its report.html again."""
    with loading():
        from lipgraft import runs

    show(runs.report(run), run, json)


def show(results: RunResults, run: Path, json: bool) -> None:
    """The results of a run, for a program or for people."""
    with loading():
        from lipgraft.report import checked, headline, heads, other_images, rows, spoken, summary, texts, undecided

    page = run / "report.html"
    if json:
        print_json({**summary(results), "run": str(run), "report": str(page)})
        return
    paper = " (in brackets: the paper)" if any(model.published for model in results.models) else ""
    table = Table(
        Column("Model", overflow="fold"), title=Text(printable(f"{results.title}, eps {results.eps:.4g}{paper}"))
    )
    for head in heads(results):
        table.add_column(head.replace(" of ", "\nof "), justify="right", overflow="fold")
    for row in rows(results):
        table.add_row(*(Text(printable(text)) for text in (row.model.title, *texts(results, row))))
    console = Console()
    console.print(table)
    for sentence in (undecided(results), headline(results), other_images(results), spoken(results), checked(results)):
        if sentence is not None:
            console.print(printable(sentence), markup=False, highlight=False)
    if results.missing:
        say(f"Not finished: {', '.join(results.missing)}; run it again to continue.")
    say(f"Report: {page.resolve()}")
