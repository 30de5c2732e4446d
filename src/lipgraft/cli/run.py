"""lipgraft run RECIPE: the whole pipeline, resumable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lipgraft import pipeline
from lipgraft.cli.common import DataRootOption, DeviceOption, JsonOption, example, parse_set, resolve_device
from lipgraft.cli.report import show
from lipgraft.errors import SettingsError

EPILOG = example(
    "lipgraft run quickstart",
    "lipgraft run my-recipe.yaml --out runs/mine --device cuda",
    "lipgraft run quickstart --set certify.verifier.max_subproblems=400 --out runs/longer",
    "lipgraft run runs/quickstart/config.yaml --out runs/again",
)


def run(
    recipe: Annotated[
        str | None,
        typer.Argument(help=f"A recipe by name ({', '.join(pipeline.recipe_names())}), a YAML file, or a config.yaml."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run directory; default runs/ and the recipe's name.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the recipe, like certify.count=100; repeatable."),
    ] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, instead of the recipe's.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print every key of a recipe, and stop.")] = False,
    json: JsonOption = False,
) -> None:
    """Pre-train, graft, fine-tune, certify and compare models, and write a report.

    Every stage that is finished is kept: after Ctrl-C or a crash, the same command goes on where it stopped.
    """
    if explain:
        typer.echo(pipeline.explain())
        return
    if recipe is None:
        raise SettingsError(f"which recipe? Known: {', '.join(pipeline.recipe_names())}, or a YAML file of your own.")
    changes = {**parse_set(set_), **({} if seed is None else {"seed": seed})}
    chosen = pipeline.load_recipe(recipe, changes)
    directory = out or Path("runs") / chosen.name
    console = Console(stderr=True, highlight=False)

    def announce(what: str, done: bool) -> None:
        console.print(
            f"· {what}{', done before' if done else ''}", style="dim" if done else "", markup=False, soft_wrap=True
        )

    results = pipeline.run(
        chosen,
        directory,
        device=resolve_device(device),
        data_root=data_root,
        progress=sys.stderr.isatty(),
        announce=announce,
    )
    show(results, directory, json)
