"""lipgraft zoo list | show"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from lipgraft.cli.common import JsonOption, ThreadsOption, example, loading, print_json, print_table, say

app = typer.Typer(help="Trained networks by name; any command takes zoo/NAME where it takes a checkpoint.")


@app.command("list", epilog=example("lipgraft zoo list"))
def list_command(threads: ThreadsOption = None, json: JsonOption = False) -> None:
    """List the networks with their standard and verified accuracy."""
    with loading():
        from lipgraft.models import zoo_card, zoo_names
        from lipgraft.models.zoo import zoo_folder

    cards = {name: zoo_card(name) for name in zoo_names()}
    if json:
        print_json([{"name": name, **asdict(card)} for name, card in cards.items()])
        return
    print_table(
        ("name", "data", "eps", "SA %", "VA %", "open", "images"),
        [
            (
                f"zoo/{name}",
                card.data,
                card.eps,
                card.measured.sa,
                card.measured.va,
                card.measured.open,
                card.measured.images,
            )
            for name, card in cards.items()
        ],
    )
    if not cards and "LIPGRAFT_ZOO" in os.environ:
        say(f"LIPGRAFT_ZOO is {zoo_folder()}, which holds no networks.")
    elif not cards:
        say("No networks here; run in a clone of the repository, or set LIPGRAFT_ZOO to its zoo folder.")


@app.command("show", epilog=example("lipgraft zoo show conv-big-mnist-0.1"))
def show_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `lipgraft zoo list`.")],
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Show the card of one network: how it was made, what was measured, how to check it."""
    with loading():
        from lipgraft.models import zoo_card

    card = zoo_card(name)
    if json:
        print_json({"name": name, **asdict(card)})
        return
    for key, value in asdict(card).items():
        if key != "measured":
            say(f"{key:<10} {value}")
    for key, value in asdict(card.measured).items():
        if value is not None:
            say(f"  {key:<10} {value}")
    short = name.removeprefix("zoo/")
    say(f"Check it:  lipgraft verify zoo/{short} --data {card.data} --eps {card.eps} --count 100 --out runs/{short}")
