"""lipgraft bench bounds | train | verify | cluster | vnncomp | vnncomp-page, the last two in `bench_vnncomp`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lipgraft.cli import bench_vnncomp
from lipgraft.cli.bench_file import FileOption, keep, or_dash
from lipgraft.cli.cluster import ClusterOption
from lipgraft.cli.common import (
    DataOption,
    DataRootOption,
    DeviceOption,
    EpsOption,
    SeedOption,
    ThreadsOption,
    VerifierOption,
    example,
    loading,
    print_table,
    resolve_device,
    say,
    verifier_settings,
)
from lipgraft.errors import SettingsError

app = typer.Typer(
    help="Measure the speed of bounds, training and verification on this machine, and compare with other verifiers."
)
RepeatsOption = Annotated[int, typer.Option(min=1, help="Timed runs after the warm-up; the median is reported.")]

TIMED = ("pretrain", "ibp", "mtl-ibp", "ctbench", "sabr")
"""Presets whose step exists in plain PyTorch, to be compared with."""

Cell = Callable[[Mapping[str, Any]], str]


@app.command(
    "bounds",
    epilog=example(
        "lipgraft bench bounds --network cnn-b --method crown --batch 8 --device cpu",
        "lipgraft bench bounds --weights cnn-b=base.safetensors --data cifar10 --batch 128 --json bounds.json",
    ),
)
def bounds_command(
    network: Annotated[
        list[str] | None, typer.Option("--network", help="A network by name; repeatable. Default: the paper's four.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="A bound method; repeatable. Default: ibp, crown, alpha-crown.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images bounded together.")] = 8,
    eps: EpsOption = 2 / 255,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            "--weights", metavar="NETWORK=PATH", help="A trained checkpoint; repeatable. Default: random weights."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Use test images of this data set. Default: noise.")] = None,
    data_root: DataRootOption = None,
    repeats: RepeatsOption = 3,
    compare: Annotated[bool, typer.Option(help="Measure the plain dense implementation too, where it fits.")] = True,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json: FileOption = None,
) -> None:
    """Measure images per second and peak memory of every network and method, grafted and plain."""
    with loading():
        from lipgraft.bench import bench_bounds
        from lipgraft.bench.bounds import NETWORKS

    place, given = resolve_device(device), _pairs(weights or [])
    networks = network or list(given) or list(NETWORKS)
    rows = bench_bounds(
        networks,
        method or ("ibp", "crown", "alpha-crown"),
        batch,
        place,
        eps,
        given,
        data=data,
        data_root=data_root,
        repeats=repeats,
        compare=compare,
        seed=seed,
    )
    print_table(
        tuple(BOUNDS_COLUMNS),
        [[cell(row) for cell in BOUNDS_COLUMNS.values()] for row in rows],
        title=f"bounds of {batch} images at once, eps {eps:.4g}, {place.type}",
    )
    for note in sorted({f"{row['network']}: {row['note']}" for row in rows if row.get("note")}):
        say(note)
    keep(json, place, {"batch": batch, "eps": eps, "data": data, "repeats": repeats, "seed": seed}, rows)


@app.command(
    "train",
    epilog=example(
        "lipgraft bench train --network cnn-b --batch 128 --device cuda --json train.json",
        "lipgraft bench train --network cnn-b --preset mtl-ibp --device cuda",
    ),
)
def train_command(
    network: Annotated[str, typer.Option("--network", help="A network by name.")] = "cnn-b",
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 128,
    preset: Annotated[
        str,
        typer.Option(
            help=f"Training preset to time: {', '.join(TIMED)}. Certified presets are timed without BatchNorm."
        ),
    ] = "pretrain",
    precision: Annotated[str, typer.Option(help="Precision, as in a training recipe.")] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Steps per timed run.")] = 100,
    repeats: RepeatsOption = 5,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json: FileOption = None,
) -> None:
    """Measure the milliseconds of a training step, and of the same step in plain PyTorch."""
    with loading():
        from lipgraft.bench import bench_train

    place = resolve_device(device)
    row = bench_train(
        network, batch, place, preset_name=preset, precision=precision, steps=steps, repeats=repeats, seed=seed
    )
    _show_one(row)
    settings = {"network": network, "preset": preset, "batch": batch, "steps": steps, "repeats": repeats, "seed": seed}
    keep(json, place, settings, row)


@app.command(
    "verify",
    epilog=example(
        "lipgraft bench verify base.safetensors --data cifar10 --eps 2/255 --count 200 --json verify.json",
        "lipgraft bench verify base.safetensors --data cifar10 --eps 2/255 --set branch.neuron_splits=0",
    ),
)
def verify_command(
    checkpoint: Annotated[Path, typer.Argument(help="The network to verify.")],
    data: DataOption,
    eps: EpsOption,
    count: Annotated[int, typer.Option(min=1, help="Number of test images, from the first.")] = 100,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds per image.")] = 20.0,
    total_seconds: Annotated[
        float | None, typer.Option(help="Wall time in seconds after which open images are given up; default no limit.")
    ] = None,
    set_: VerifierOption = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    json: FileOption = None,
) -> None:
    """Measure how fast images are decided, and how many in the given time."""
    with loading():
        from lipgraft import data as datasets
        from lipgraft.bench import bench_verify
        from lipgraft.cli.model import load_model
        from lipgraft.settings import build
        from lipgraft.verification import VerifySettings

    chosen = build(
        VerifySettings, verifier_settings({"limits.total_seconds": total_seconds}, set_), where="bench verify"
    )
    place, source = resolve_device(device), datasets.load(data, data_root)
    x, y = datasets.images(source.x_test[:count]).to(place), source.y_test[:count].to(place)
    row = bench_verify(load_model(checkpoint, source, place), x, y, eps, timeout, settings=chosen)
    _show_one(row)
    if row["curve"]:
        points = ", ".join(f"{verified} after {seconds:.3g} s" for seconds, verified in _some(row["curve"], 10))
        say(f"verified: {points}")
    settings = {"checkpoint": str(checkpoint), "data": data, "eps": eps, "count": count, "timeout": timeout}
    settings |= {"total_seconds": total_seconds, "set": list(set_ or [])}
    keep(json, place, settings, row)


@app.command(
    "cluster",
    epilog=example(
        "lipgraft bench cluster base.safetensors --data cifar10 --eps 2/255 --count 500 --subproblems 200",
        "lipgraft bench cluster base.safetensors --data cifar10 --eps 2/255 --workers 4 --json cluster.json",
    ),
)
def cluster_command(
    checkpoint: Annotated[Path, typer.Argument(help="The network to verify.")],
    data: DataOption,
    eps: EpsOption,
    count: Annotated[int, typer.Option(min=1, help="Number of test images, from the first.")] = 200,
    subproblems: Annotated[
        int, typer.Option(min=0, help="Most subproblems per image: work is limited, not time.")
    ] = 200,
    workers: Annotated[
        list[int] | None, typer.Option("--workers", min=1, help="Number of workers; repeatable. Default: 1 and 2.")
    ] = None,
    cluster: ClusterOption = "local",
    set_: VerifierOption = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    json: FileOption = None,
) -> None:
    """Measure images per second of one process and of the workers of a cluster, and the cost of Ray per image."""
    with loading():
        import torch

        from lipgraft import data as datasets
        from lipgraft.cli.model import load_model
        from lipgraft.cluster.connection import LOCAL
        from lipgraft.cluster.speed import bench_cluster
        from lipgraft.settings import build
        from lipgraft.verification import VerifySettings

    limits = {"limits.max_subproblems": subproblems, "limits.timeout": 1e6}
    chosen = build(VerifySettings, verifier_settings(limits, set_), where="bench cluster")
    source = datasets.load(data, data_root)
    console, began = Console(stderr=True), time.monotonic()

    def show(count: int, what: str) -> None:
        who = "without Ray" if not count else f"{count} worker{'s' if count > 1 else ''}"
        console.print(f"{time.monotonic() - began:.0f} s: {who}, {what}")

    rows = bench_cluster(
        load_model(checkpoint, source, torch.device("cpu")),
        datasets.images(source.x_test[:count]),
        source.y_test[:count],
        eps,
        settings=chosen,
        workers=workers or (1, 2),
        address=cluster or LOCAL,
        device=device,
        threads=threads or 1,
        progress=show,
    )
    print_table(
        tuple(CLUSTER_COLUMNS),
        [[cell(row) for cell in CLUSTER_COLUMNS.values()] for row in rows],
        title=f"{rows[0]['images']} images, eps {eps:.4g}, {rows[0]['device']}; ms per image",
    )
    for row in rows:
        who = f"{row['workers']} workers" if row["workers"] else "without Ray"
        say(f"{who}: {', '.join(f'{status} {count}' for status, count in row['verdicts'].items())}")
    settings = {"checkpoint": str(checkpoint), "data": data, "eps": eps, "count": count, "subproblems": subproblems}
    settings |= {"threads": threads or 1, "set": list(set_ or [])}
    keep(json, torch.device("cpu" if rows[0]["device"] == "cpu" else "cuda"), settings, rows)


app.command("vnncomp", epilog=bench_vnncomp.EPILOG)(bench_vnncomp.vnncomp)
app.command("vnncomp-page", epilog=bench_vnncomp.PAGE_EPILOG)(bench_vnncomp.vnncomp_page)


BOUNDS_COLUMNS: dict[str, Cell] = {
    "network": lambda row: row["network"] + (" grafted" if row["grafted"] else ""),
    "method": lambda row: " ".join(filter(None, (row["method"], row["neurons"]))),
    "images/s": lambda row: f"{row['images_per_second']:.4g}",
    "peak MiB": lambda row: f"{row['peak_bytes'] / 2**20:.0f}",
    "unstable": lambda row: f"{row['unstable']:.1%}",
    "x dense": lambda row: or_dash(row.get("ratio"), "{:.1f}"),
}


CLUSTER_COLUMNS: dict[str, Cell] = {
    "workers": lambda row: str(row["workers"] or "none"),
    "images/s": lambda row: f"{row['images_per_second']:.4g}",
    "Ray ms": lambda row: f"{row['ray_ms']:.3g}",
    "driver ms": lambda row: f"{row['driver_ms']:.3g}",
    "idle: Ray ms": lambda row: f"{row['idle_ray_ms']:.3g}",
    "driver ms ": lambda row: f"{row['idle_driver_ms']:.3g}",
    "start s": lambda row: f"{row['start_seconds']:.2g}",
}


def _show_one(row: Mapping[str, Any]) -> None:
    """Figures one below the other; lists are for the file."""
    short = {key: value for key, value in row.items() if not isinstance(value, list)}
    print_table(("figure", "value"), [(key, f"{v:.4g}" if isinstance(v, float) else v) for key, v in short.items()])


def _some(points: Sequence[Any], count: int) -> list[Any]:
    """At most so many of the points, evenly spaced, the last one among them."""
    step = max(1, -(-len(points) // count))
    return list(reversed(list(points)[::-step]))


def _pairs(texts: Sequence[str]) -> dict[str, Path]:
    """NETWORK=PATH, each."""
    pairs = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise SettingsError(f"--weights takes NETWORK=PATH, such as cnn-b=base.safetensors, got {text!r}.")
        pairs[name] = Path(path)
    return pairs
