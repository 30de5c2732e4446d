"""lipgraft attack CHECKPOINT: accuracy under attack on the test images."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lipgraft.cli import names
from lipgraft.cli.common import (
    DataOption,
    DataRootOption,
    DeviceOption,
    EpsOption,
    JsonOption,
    SeedOption,
    ThreadsOption,
    example,
    loading,
    place_of,
    print_json,
    print_table,
    resolve_device,
)
from lipgraft.errors import counted
from lipgraft.progress import bar

EPILOG = example("lipgraft attack model.safetensors --data cifar10 --eps 2/255 --steps 100 --restarts 100")


def attack(
    checkpoint: Annotated[Path, typer.Argument(help="The network to attack: a file, or module:function.")],
    data: DataOption,
    eps: EpsOption,
    method: Annotated[str, typer.Option(help=f"One of: {', '.join(names.ATTACKS)}.")] = "pgd",
    steps: Annotated[int, typer.Option(min=1, help="Gradient steps of each start.")] = 100,
    restarts: Annotated[int, typer.Option(min=1, help="Random starts per image.")] = 1,
    count: Annotated[
        int | None, typer.Option(min=1, help="Number of test images, from the first; default all.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Points per batch; default depends on the device.")] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Attack the test images and print the accuracy that is left: robust accuracy (RA) after 1, 10, ... restarts."""
    with loading():
        from lipgraft import data as datasets
        from lipgraft.attacks.methods import method_named
        from lipgraft.cli.model import load_model
        from lipgraft.training.evaluate import robust_accuracy

    dataset = datasets.load(data, root=data_root)
    where = resolve_device(device)
    model = load_model(checkpoint, dataset, where)
    x, y = dataset.x_test[:count], dataset.y_test[:count]
    began = time.perf_counter()
    with bar("attacking", place=place_of(where)) as progress:
        result = robust_accuracy(
            model,
            x,
            y,
            eps,
            method=method,
            steps=steps,
            restarts=restarts,
            batch=batch,
            seed=seed,
            progress=progress,
        )
    seconds = time.perf_counter() - began
    if json:
        survivors = result.survivors.nonzero().flatten().tolist()
        after = {str(restart): value for restart, value in result.after.items()}
        print_json(
            {"images": len(x), "eps": eps, "sa": result.clean, "ra": after, "seconds": seconds, "survivors": survivors}
        )
        return
    rows = [("SA", "", f"{result.clean:.2%}")]
    taken = counted(method_named(method).fixed_steps or steps, "step")
    rows += [("RA", f"{method}, {taken} x {counted(n, 'restart')}", f"{ra:.2%}") for n, ra in result.after.items()]
    print_table(
        ("", "attack", f"of {counted(len(x), 'image')}"),
        rows,
        title=f"{checkpoint.name}, eps {eps:.5g}, {seconds:.1f} s",
    )
