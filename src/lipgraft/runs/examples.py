"""Images worth looking at: those on which the models differ, with the counterexamples that were found."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lipgraft.data import Dataset, images
from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_bytes
from lipgraft.report.results import Example, ExampleVerdict, ImageResult
from lipgraft.runs.store import Row


def choose(verdicts: Mapping[str, Sequence[Row]], count: int) -> list[int]:
    """`count` images: one of each pattern of verdicts in turn, the patterns with most difference first.

    verdicts: those of each model, on the same images.
    """
    patterns: dict[tuple[str, ...], list[int]] = {}
    for rows in zip(*verdicts.values(), strict=True):
        patterns.setdefault(tuple(row.verdict.status for row in rows), []).append(rows[0].image)
    ordered = sorted(patterns.items(), key=lambda item: (-len(set(item[0])), -len(item[1]), item[0]))
    chosen: list[int] = []
    for turn in range(max((len(places) for places in patterns.values()), default=0)):
        chosen += [places[turn] for _, places in ordered if turn < len(places)]
    return sorted(chosen[:count])


def save(
    path: Path,
    data: Dataset,
    chosen: Sequence[int],
    networks: Mapping[str, nn.Module],
    verdicts: Mapping[str, Sequence[Row]],
) -> None:
    """Write the images, and per model the counterexamples (NaN: none) and what they are taken for (-1: none)."""
    x = images(data.x_test[torch.tensor(chosen, dtype=torch.long, device=data.x_test.device)]).cpu()
    none = torch.full(x.shape[1:], torch.nan)
    arrays: dict[str, Any] = {"index": np.array(chosen, dtype=np.int64), "image": _pixels_last(x)}
    for name, network in networks.items():
        found = {row.image: row.verdict.counterexample for row in verdicts[name]}
        points = [none if (point := found[image]) is None else point for image in chosen]
        broken = torch.stack(points) if points else x
        arrays[f"adversarial.{name}"] = _pixels_last(broken)
        arrays[f"taken_for.{name}"] = _classes(network, broken)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    atomic_write_bytes(path, buffer.getvalue())


def are_there(path: Path) -> bool:
    """Whether the file is there and whole."""
    return _arrays(path) is not None


def _arrays(path: Path) -> dict[str, NDArray[Any]] | None:
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def read(path: Path, verdicts: Mapping[str, Sequence[ImageResult]], classes: Sequence[str]) -> tuple[Example, ...]:
    """The examples with each model's verdict on them."""
    arrays = _arrays(path)
    if arrays is None:
        raise SettingsError(f"{path} is missing or damaged; run the recipe again to make it.")
    examples = []
    for row, index in enumerate(arrays["index"].tolist()):
        results = {name: next(r for r in rows if r.index == index) for name, rows in verdicts.items()}
        seen = tuple(_verdict(arrays, name, row, result, classes) for name, result in results.items())
        label = classes[next(iter(results.values())).label]
        examples.append(Example(index, label, arrays["image"][row], seen))
    return tuple(examples)


def _verdict(
    arrays: Mapping[str, NDArray[Any]], name: str, row: int, result: ImageResult, classes: Sequence[str]
) -> ExampleVerdict:
    adversarial, taken_for = arrays[f"adversarial.{name}"][row], int(arrays[f"taken_for.{name}"][row])
    detail = result.reason or result.method
    if taken_for < 0:
        return ExampleVerdict(name, result.status, detail)
    return ExampleVerdict(name, result.status, detail, adversarial, _class(classes, taken_for))


def _class(classes: Sequence[str], number: int) -> str:
    """Its name; a network may know more classes than the test images name."""
    return classes[number] if number < len(classes) else str(number)


@torch.no_grad()
def _classes(network: nn.Module, x: Tensor) -> NDArray[np.int64]:
    """What the network takes each image for; -1 where there is none (NaN)."""
    device = next(network.parameters()).device
    there = ~x.flatten(1).isnan().any(1)
    taken = torch.full((len(x),), -1, dtype=torch.long)
    if bool(there.any()):
        taken[there] = network(x[there].to(device)).argmax(1).cpu()
    return np.asarray(taken.numpy(), dtype=np.int64)


def _pixels_last(x: Tensor) -> NDArray[np.float32]:
    return np.asarray(x.permute(0, 2, 3, 1).numpy(), dtype=np.float32)
