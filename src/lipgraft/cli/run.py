"""lipgraft run RECIPE: the whole pipeline, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lipgraft.cli import names
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
    resolve_device,
)
from lipgraft.cli.report import show
from lipgraft.errors import SettingsError

EPILOG = example(
    "lipgraft run quickstart",
    "lipgraft run my-recipe.yaml --out runs/mine --device cuda",
    "lipgraft run quickstart --set certify.verifier.limits.max_subproblems=400 --out runs/longer",
    "lipgraft run runs/quickstart/config.yaml --out runs/again",
)


def run(
    recipe: Annotated[
        str | None,
        typer.Argument(help=f"A recipe by name ({', '.join(names.RECIPES)}), a YAML file, or a config.yaml."),
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
    threads: ThreadsOption = None,
    seed: OwnSeedOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print every key of a recipe, and exit.")] = False,
    json: JsonOption = False,
) -> None:
    """Pre-train, graft, fine-tune, certify and compare models, and write a report.

    Every finished stage is kept: after Ctrl-C or a crash, the same command continues where it stopped.
    """
    with loading():
        from lipgraft import runs

    if explain:
        typer.echo(runs.explain())
        return
    if recipe is None:
        raise SettingsError(f"name a recipe. Known: {', '.join(runs.recipe_names())}, or a YAML file of your own.")
    given = {"seed": seed, "threads": threads}
    changes = {**parse_set(set_), **{key: value for key, value in given.items() if value is not None}}
    chosen = runs.load_recipe(recipe, changes)
    directory = out or Path("runs") / chosen.name
    results = runs.run(
        chosen,
        directory,
        device=resolve_device(device),
        data_root=data_root,
        progress=True,
        announce=announcer(),
    )
    show(results, directory, json)
