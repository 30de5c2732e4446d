"""lipgraft check DIR: recheck certificates with a program that shares no code with the verifier."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipgraft.cli.common import JsonOption, SeedOption, example, loading, print_json, say
from lipgraft.errors import counted
from lipgraft.progress import bar
from lipgraft.settings import MOST_THREADS

if TYPE_CHECKING:
    from lipgraft.checker import Outcome

EPILOG = example(
    "lipgraft check certificates", "lipgraft check certificates --network net.onnx --jobs 2 --exact 20 --json"
)


def check(
    folder: Annotated[
        Path, typer.Argument(help="Folder with certificates, as written by `lipgraft verify --certificates`.")
    ],
    network: Annotated[
        Path | None,
        typer.Option(help="An ONNX file or checkpoint that the proofs must hold for, instead of the folder's network."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Files to check at once, each in its own process.")] = 1,
    exact: Annotated[
        int, typer.Option(min=0, help="Number of randomly drawn leaves to repeat in exact arithmetic.")
    ] = 0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_THREADS, help="CPU threads of each process; default NumPy's choice."),
    ] = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Recompute every bound of every proof in double precision, rounding included; exit code 1 if any is rejected."""
    if threads is not None:  # NumPy's libraries read them when they are loaded
        os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)))
    with loading():
        from lipgraft.checker import check_folder

    with bar("certificates") as progress:
        outcomes = check_folder(folder, network, jobs=jobs, exact=exact, seed=seed, progress=progress)
    rejected = [outcome for outcome in outcomes if not outcome.accepted]
    if json:
        counts = {"accepted": len(outcomes) - len(rejected), "rejected": len(rejected)}
        print_json({"folder": str(folder), **counts, "files": [asdict(outcome) for outcome in outcomes]})
    else:
        for line in summary(outcomes):
            say(line)
        for outcome in rejected:
            say(f"rejected: {outcome.name}: {outcome.reason}", err=True)
    if rejected:
        raise typer.Exit(1)


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """How many of each kind were checked, and with how much work."""
    lines = []
    for kind in ("proof", "counterexample"):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        if of_kind:
            good = [outcome for outcome in of_kind if outcome.accepted]
            text = f"{len(good)} of {counted(len(of_kind), kind)} checked"
            if kind == "proof":
                text += f": {counted(sum(outcome.leaves for outcome in good), 'leaf', 'leaves')}"
                exact = sum(outcome.exact for outcome in good)
                text += f", {exact:,} of them repeated in exact arithmetic" if exact else ""
                spoken = sorted({outcome.speaks_of for outcome in good})
                text += f", of the network in {' and '.join(spoken)} arithmetic" if spoken else ""
            lines.append(text)
    unreadable = sum(outcome.kind == "unreadable" for outcome in outcomes)
    return lines + ([f"{counted(unreadable, 'file')} could not be read as either"] if unreadable else [])
