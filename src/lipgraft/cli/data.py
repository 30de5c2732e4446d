"""lipgraft data list | check | where"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lipgraft.cli.common import (
    DataRootOption,
    JsonOption,
    ThreadsOption,
    example,
    loading,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from lipgraft.data import CheckReport, Entry

app = typer.Typer(help="List the data sets, check their files, and show where they are stored.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name from `lipgraft data list`.")]


@app.command("list", epilog=example("lipgraft data list --json"))
def list_command(data_root_: DataRootOption = None, threads: ThreadsOption = None, json: JsonOption = False) -> None:
    """List the data sets by name, and whether their files are on this machine."""
    with loading():
        from lipgraft.data import CATALOGUE, data_root, missing_files

    root = data_root(data_root_)
    present = {name: not missing_files(facts, root) for name, facts in CATALOGUE.items()}
    if json:
        print_json([_facts(facts) | {"present": present[name]} for name, facts in CATALOGUE.items()])
        return
    columns = ("name", "input_shape", "classes", "train", "test")
    rows = [[*(_facts(e)[c] for c in columns), "yes" if present[e.name] else "no"] for e in CATALOGUE.values()]
    print_table((*columns, "present"), rows)


@app.command("check", epilog=example("lipgraft data check cifar10 --data-root ~/data"))
def check_command(
    name: NameArgument,
    data_root_: DataRootOption = None,
    download: Annotated[bool, typer.Option("--download", help="Download missing files first.")] = False,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Compare counts, classes and channel means of a data set with the published figures."""
    with loading():
        from lipgraft.data import check

    report = check(name, data_root_, download=download)
    if json:
        print_json(asdict(report))
    else:
        say(_summary(report))


@app.command("where", epilog=example("lipgraft data where", "lipgraft data where cifar10 --json"))
def where_command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One data set; default all.")] = None,
    data_root_: DataRootOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Print the folder where data sets are searched for, and the files expected there."""
    with loading():
        from lipgraft.data import CATALOGUE, data_root, entry, missing_files

    root = data_root(data_root_)
    chosen = [entry(name)] if name is not None else list(CATALOGUE.values())
    files = {e.name: {"files": list(e.files), "missing": missing_files(e, root)} for e in chosen}
    if json:
        print_json({"root": str(root), "datasets": files})
        return
    say(str(root))
    for dataset, lists in files.items():
        for file in lists["files"]:
            say(f"  {dataset}: {file}{' (missing)' if file in lists['missing'] else ''}")
        if not lists["files"]:
            say(f"  {dataset}: comes with scikit-learn")


def _facts(facts: Entry) -> dict[str, object]:
    published = facts.published
    return {
        "name": facts.name,
        "input_shape": facts.input_shape,
        "classes": facts.classes,
        "train": sum(published.train),
        "test": sum(published.test),
    }


def _summary(report: CheckReport) -> str:
    means = " ".join(f"{m:.4f}" for m in report.mean)
    stds = " ".join(f"{s:.4f}" for s in report.std)
    return "\n".join(
        (
            f"{report.name}: as published, under {report.root}",
            f"  images     {sum(report.train)} training, {sum(report.test)} test, shape {report.input_shape}",
            f"  per class  training {_histogram(report.train)}",
            f"             test     {_histogram(report.test)}",
            f"  channels   mean {means}, std {stds}",
        )
    )


def _histogram(counts: tuple[int, ...]) -> str:
    return f"{counts[0]} each" if len(set(counts)) == 1 else " ".join(map(str, counts))
