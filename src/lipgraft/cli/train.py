"""lipgraft train RECIPE: one training run, into a run directory, resumable."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipgraft.cli import names
from lipgraft.cli.common import (
    DataRootOption,
    DeviceOption,
    JsonOption,
    SeedOption,
    ThreadsOption,
    check_own,
    example,
    loading,
    parse_set,
    place_of,
    print_json,
    resolve_device,
    say,
)
from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text
from lipgraft.progress import bar
from lipgraft.settings import to_mapping

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lipgraft.cli.train_recipe import TrainRecipe
    from lipgraft.data import Dataset

DEFAULT_MODEL = "cnn-b"

EPILOG = example(
    "lipgraft train pretrain-short --model digits-cnn --data digits --set eps=0.1 --out runs/digits",
    "lipgraft train finetune --start grafted.safetensors --data cifar10 --set slope=5e-5 --set l1=1e-4 --out runs/ft",
    "lipgraft train pretrain-short --model mynet:build --data mine.npz --set eps=0.05 --out runs/own",
    "lipgraft train my-recipe.yaml --out runs/mine --resume",
)


def train(
    recipe: Annotated[str, typer.Argument(help=f"{', '.join(names.PRESETS)}, or a YAML file.")],
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/ and the recipe's name.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in the directory.")] = False,
    data: Annotated[str | None, typer.Option(help="Data set, instead of the recipe's.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Network, instead of the recipe's: a name, an .onnx file, or module:function.")
    ] = None,
    start: Annotated[Path | None, typer.Option(help="Checkpoint to start from, instead of the recipe's.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A training setting, such as eps=2/255; repeatable."),
    ] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Train or fine-tune a network; metrics and checkpoints go to the run directory, one state per epoch.

    `torchrun --nproc-per-node N -m lipgraft train ...` shares every batch among N processes, one per GPU.
    """
    with loading():
        from lipgraft import data as datasets
        from lipgraft import training
        from lipgraft.cli.train_recipe import read_recipe
        from lipgraft.locking import held
        from lipgraft.training.processes import joined

    given = {"data": data, "model": model, "start": None if start is None else str(start)}
    chosen = read_recipe(recipe, {k: v for k, v in given.items() if v is not None}, parse_set(set_))
    place, run = resolve_device(device), out or Path("runs") / Path(recipe).stem
    dataset = datasets.load(chosen.data, root=data_root)
    network = _network(chosen, dataset, seed)
    with joined(place) as (processes, place), held(run) if processes.first else nullcontext():
        if processes.first and not resume:
            if (run / "checkpoints" / "state.safetensors").exists():
                raise SettingsError(f"{run} already holds a run; add --resume to continue it, or choose another --out.")
            check_own(run, "train")
            _write_config(run / "config.yaml", chosen, seed, place)
        with bar("training", show=processes.first and not json, keep=True, place=place_of(place)) as progress:
            result = training.train(
                network, dataset, chosen.train, run_dir=run, resume=resume, device=place, seed=seed, progress=progress
            )
    if not processes.first:
        return
    sa = training.accuracy(result.model, dataset.x_test, dataset.y_test)
    last = result.history[-1] if result.history else {}
    summary = {"checkpoint": str(result.checkpoint), "epochs": len(result.history), "best_epoch": result.best_epoch}
    if json:
        print_json({**summary, "test_sa": sa, "last": last})
    else:
        say(f"{result.checkpoint}: best epoch {result.best_epoch} of {len(result.history)}, SA {sa:.2%} on test")


def _network(recipe: TrainRecipe, data: Dataset, seed: int) -> nn.Module:
    from lipgraft import models
    from lipgraft.cli.model import load_model
    from lipgraft.network import trace

    if recipe.start is None:
        return models.start(recipe.model or DEFAULT_MODEL, data, activation=recipe.activation, seed=seed)
    model = load_model(recipe.start, data)
    trace(model, data.input_shape, check=False)  # as `start` does: what cannot be verified is not worth its training
    there = getattr(getattr(model, "spec", None), "name", "a network of your own")
    if recipe.model not in (None, there):
        raise SettingsError(
            f"--model {recipe.model} and --start {recipe.start} contradict each other: {recipe.start} holds {there}; "
            "leave one of them out."
        )
    return model


def _write_config(path: Path, recipe: TrainRecipe, seed: int, device: torch.device) -> None:
    """The resolved settings, and where they ran."""
    from lipgraft import yaml_text
    from lipgraft.runs.provenance import hardware, versions

    where = {"versions": versions(), "hardware": hardware(device)}
    atomic_write_text(path, yaml_text.dump({**to_mapping(recipe), "seed": seed, "device": str(device), **where}))
