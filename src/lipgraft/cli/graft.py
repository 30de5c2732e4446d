"""lipgraft graft CHECKPOINT: score the neurons, choose which become lines, write the grafted network."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    parse_set,
    place_of,
    print_json,
    print_table,
    resolve_device,
    say,
)
from lipgraft.errors import SettingsError
from lipgraft.files import check_file
from lipgraft.progress import DEAR, bar, duration

if TYPE_CHECKING:
    import torch

    from lipgraft.data import Dataset
    from lipgraft.grafting import Overlap, Summary

CHECKPOINT = ".safetensors"

EPILOG = example(
    "lipgraft graft base.safetensors --data cifar10 --eps 2/255 --ratio 0.5 --out grafted.safetensors --show",
    "lipgraft graft own.onnx --data own.npz --eps 0.05 --lines fitted --out grafted.safetensors",
    "lipgraft graft base.safetensors --data cifar10 --eps 2/255 --set pool=0.9 --set last_layer=cap --show",
)


def graft(
    checkpoint: Annotated[Path, typer.Argument(help="The network to graft: a file, or module:function.")],
    data: DataOption,
    eps: EpsOption,
    criterion: Annotated[str, typer.Option(help=f"One of: {', '.join(names.CRITERIA)}.")] = ("weighted-interval"),
    ratio: Annotated[float, typer.Option(help="Share of all neurons to graft, in [0, 1].")] = 0.5,
    out: Annotated[Path | None, typer.Option(help="File for the grafted network: .safetensors or .onnx.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the criterion, such as pool=0.9; repeatable."),
    ] = None,
    lines: Annotated[
        str, typer.Option(help="Initial lines: constant, or fitted to each activation over the calibration images.")
    ] = "constant",
    slope: Annotated[float, typer.Option(help="Initial slope of the lines.")] = 0.4,
    intercept: Annotated[float, typer.Option(help="Initial intercept of the lines.")] = 0.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Calibration images; default the paper's number for the network.")
    ] = None,
    bounds: Annotated[str, typer.Option(help="Bound method for the scores.")] = "crown",
    batch: Annotated[int, typer.Option(min=1, help="Images bounded at once.")] = 100,
    compare: Annotated[Path | None, typer.Option(help="Another grafted network: print the overlap with it.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print what the selection did, layer by layer.")] = False,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Graft a trained network: replace the neurons that the criterion selects by lines with a trainable slope.

    A network with BatchNorm is folded first. Fine-tune the result before you verify it.
    """
    with loading():
        from lipgraft import data as datasets
        from lipgraft import grafting, models

    if out is None and not (show or json or compare):
        raise SettingsError("nothing to do: give --out to write the grafted network, or --show to look at it.")
    if out is not None:
        check_file(out)
        if out.suffix not in (CHECKPOINT, ".onnx"):
            raise SettingsError(f"--out {out} must end in {CHECKPOINT}, or in .onnx for other tools.")
    settings = parse_set(set_)
    grafting.check_selection(criterion, ratio, **settings)
    grafting.check_lines(lines, slope, intercept)
    others = None if compare is None else grafting.masks_of(models.load(compare))
    if others == {}:
        raise SettingsError(f"{compare} is not grafted, so there is nothing to compare with; give a grafted network.")
    dataset = datasets.load(data, root=data_root)
    where = resolve_device(device)
    model = _load(checkpoint, dataset, where)
    _tell_cost(model, dataset, eps, bounds, count, where)
    with bar("scoring neurons", place=place_of(where), hint="--count takes fewer images") as progress:
        plan = grafting.plan(
            model,
            dataset,
            eps,
            criterion=criterion,
            ratio=ratio,
            options=settings,
            lines=lines,
            slope=slope,
            intercept=intercept,
            count=count,
            bounds=bounds,
            batch=batch,
            seed=seed,
            progress=progress,
        )
    summary = plan.summary
    overlap = None if others is None else grafting.overlap(plan.masks, others)
    if out is not None:
        started = {"lines": lines, "slope": slope, "intercept": intercept}
        made = {"criterion": criterion, "ratio": ratio, "settings": settings, **started}
        scored = {"data": data, "eps": eps, "bounds": bounds, "count": plan.scores.count, "seed": seed}
        extra = {"graft": {**made, **scored}} if out.suffix == CHECKPOINT else None  # ONNX has no place for it
        models.save(plan.apply(model), out, extra=extra, input_shape=dataset.input_shape)
    if json:
        print_json({**summary.to_dict(), "overlap": None if overlap is None else _overlap_dict(overlap)})
        return
    if show:
        _print(summary)
    total = summary.total
    say(
        f"{total.grafted} of {total.neurons} neurons grafted ({total.share:.1%}); unstable {total.unr_before:.2%} of "
        f"neurons before, {total.unr_after:.2%} after" + (f"; written to {out}" if out is not None else "")
    )
    if overlap is not None:
        say(f"overlap with {compare}: {overlap.share:.1%} of these neurons, Jaccard {overlap.jaccard:.3f}")


def _tell_cost(model: Any, data: Dataset, eps: float, bounds: str, count: int | None, device: torch.device) -> None:
    """Say on a CPU how long scoring will take, from what two images take: the first batch alone may take minutes."""
    if device.type != "cpu":
        return
    from lipgraft import grafting

    wanted = count or grafting.calibration_size(getattr(getattr(model, "spec", None), "name", ""), data.name)
    images = min(wanted, len(data.split()[0]))
    x, _ = grafting.calibration_set(data, min(3, len(data.x_train)))
    ends = [time.perf_counter()]
    for some in (x[:1], x):  # the difference, since every call has work beside its images
        grafting.score(model, some, eps, bounds)
        ends.append(time.perf_counter())
    seconds = max(0.0, (ends[2] - ends[1]) - (ends[1] - ends[0])) / max(1, len(x) - 1) * images
    if seconds >= DEAR:
        text = f"scoring neurons on {images:,} images: about {duration(seconds)} on {place_of(device)}, or less"
        print(f"{text} (--count takes fewer images)", file=sys.stderr, flush=True)


def _load(checkpoint: Path, data: Dataset, device: torch.device) -> Any:
    from lipgraft.cli.model import load_model
    from lipgraft.models import folded

    return folded(load_model(checkpoint, data, device), data)


def _overlap_dict(overlap: Overlap) -> dict[str, Any]:
    return {**asdict(overlap), "jaccard": overlap.jaccard, "share": overlap.share}


def _print(summary: Summary) -> None:
    columns = ("layer", "neurons", "grafted", "share", "UNR before", "UNR after", "left")
    rows = [
        (
            row.name,
            row.neurons,
            row.grafted,
            f"{row.share:.1%}",
            f"{row.unr_before:.2%}",
            f"{row.unr_after:.2%}",
            f"{row.remaining:.2f}",
        )
        for row in (*summary.layers, summary.total)
    ]
    print_table(columns, rows, title="grafted neurons")
