"""What is measured of a model: accuracies, unstable neurons by layer, certified margins, Lipschitz constants."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.attacks.search import Progress
from lipgraft.bounds import METHODS, Bounds, bound
from lipgraft.bounds.margins import other_classes
from lipgraft.bounds.relaxations import unstable
from lipgraft.box import Box
from lipgraft.data import Dataset, images
from lipgraft.files import atomic_write_text
from lipgraft.network import Network, evaluated, full_precision, trace, trace_within
from lipgraft.progress import bar
from lipgraft.runs.recipe import AttackSettings, LipschitzRecipe
from lipgraft.sensitivity import lipschitz
from lipgraft.training import robust_accuracy

BATCH = 100
"""Images bounded at once."""

LOT = 1024
"""Images attacked before what is found out is kept."""


def accuracies(
    model: nn.Module,
    data: Dataset,
    eps: float,
    settings: AttackSettings,
    seed: int,
    folder: Path,
    progress: bool,
) -> dict[str, Any]:
    """SA and RA over the first test images.

    A lot of images at a time, each with random starts of its own. What is found out about a lot is kept in the folder,
    so that an interruption costs no more than one.
    """
    count = len(data.x_test[: settings.count])
    lots = []
    with bar("attacking", show=progress) as advance:
        for first in range(0, max(count, 1), LOT):  # without images it is refused
            lot = slice(first, min(first + LOT, count))
            file = folder / f"{lot.start}-{lot.stop}.json"
            if not file.exists():
                atomic_write_text(file, json.dumps(_attacked(model, data, lot, count, eps, settings, seed, advance)))
            lots.append(json.loads(file.read_text(encoding="utf-8")))
    after = {restarts: sum(lot["after"][restarts] for lot in lots) / count for restarts in lots[0]["after"]}
    return {
        "sa": sum(lot["clean"] for lot in lots) / count,
        "ra": after[str(settings.restarts)],
        "after": after,
        "count": count,
        "seconds": sum(lot["seconds"] for lot in lots),
    }


def _attacked(
    model: nn.Module,
    data: Dataset,
    lot: slice,
    count: int,
    eps: float,
    settings: AttackSettings,
    seed: int,
    advance: Progress,
) -> dict[str, Any]:
    """How many images of a lot are classified correctly, and how many still are after so many restarts."""
    x, y = data.x_test[lot], data.y_test[lot]
    began = time.perf_counter()
    found = robust_accuracy(
        model,
        x,
        y,
        eps,
        method=settings.method,
        steps=settings.steps,
        restarts=settings.restarts,
        seed=seed + (lot.start << 32),
        progress=lambda done, _: advance(lot.start + done, count),
    )
    after = {str(restarts): round(share * len(x)) for restarts, share in found.after.items()}
    return {"clean": round(found.clean * len(x)), "after": after, "seconds": time.perf_counter() - began}


def unstable_shares(model: nn.Module, x: Tensor, eps: float, progress: bool = False) -> list[dict[str, Any]]:
    """Layer by layer: neurons, grafted ones, and the mean share that is unstable under CROWN's bounds.

    x: (B, C, H, W) in [0, 1]. Grafted neurons are never unstable, and count among all neurons.
    """
    network = trace(model, tuple(x.shape[1:]))
    counted = _Unstable(network)
    with bar("bounding before fine-tuning", show=progress) as advance:
        for first in range(0, len(x), BATCH):
            counted.add(bound(network, Box.linf(x[first : first + BATCH], eps)))
            advance(min(first + BATCH, len(x)), len(x))
    return counted.shares()


def shares_and_margins(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, method: str, reached: Tensor, progress: bool = False
) -> tuple[list[dict[str, Any]], list[float]]:
    """The unstable shares of the images `reached`, (B,) boolean, and the margins of those classified correctly: for
    each the certified lower bound of (true logit - best other logit). CROWN bounds an image once for both.
    """
    network = trace(model, tuple(x.shape[1:]))
    right = torch.zeros_like(reached)
    right[correct(model, x, y)] = True
    counted, margins = _Unstable(network), []
    some = torch.nonzero(reached | right).flatten()
    with bar("bounding", show=progress) as advance:
        for first in range(0, len(some), BATCH):
            part = some[first : first + BATCH]
            box, (_, rows) = Box.linf(x[part], eps), other_classes(y[part], network.output_shape[0], x.dtype)
            found = bound(network, box, C=rows)
            counted.add(found, reached[part])
            low = found.lower
            if method != "crown":
                refined, _ = METHODS[method]
                low = bound(network, box, method, rows, layers=found.layers if refined else None).lower
            margins += low.amin(1)[right[part]].tolist()
            advance(min(first + BATCH, len(some)), len(some))
    return counted.shares(), margins


class _Unstable:
    """Counts unstable neurons by layer."""

    def __init__(self, network: Network) -> None:
        self.nodes = [node for _, node in network.activations() if not node.auxiliary]
        self.counts, self.images = {node.name: 0 for node in self.nodes}, 0

    def add(self, found: Bounds, wanted: Tensor | None = None) -> None:
        """wanted: (B,) boolean, which of the boxes count; by default all."""
        every = torch.ones(len(found.lower), dtype=torch.bool, device=found.lower.device)
        chosen = every if wanted is None else wanted
        self.images += int(chosen.sum())
        for node in self.nodes:
            loose = unstable(node, *found.layers[node.name]).flatten(1).sum(1)
            self.counts[node.name] += int(loose[chosen].sum())

    def shares(self) -> list[dict[str, Any]]:
        rows = []
        for node in self.nodes:
            neurons = int(torch.Size(node.shape).numel())
            grafted = 0 if node.graft is None else int(node.graft.mask.sum())
            share = self.counts[node.name] / (neurons * self.images) if self.images else float("nan")
            rows.append({"name": node.name, "neurons": neurons, "grafted": grafted, "unr": share})
        return rows


def lipschitz_constants(
    model: nn.Module, data: Dataset, eps: float, settings: LipschitzRecipe, seed: int, progress: bool
) -> dict[str, Any]:
    """Each notion's mean over the first correctly classified test images."""
    x, y = images(data.x_test), data.y_test
    x = x[correct(model, x, y)[: settings.count]]
    means = {}
    if len(x):
        box = Box.linf(x, eps)
        with full_precision():  # once for all notions
            network = trace_within(model, box.lower, box.upper)
    for notion in settings.notions if len(x) else ():
        with bar(f"Lipschitz constants ({notion})", show=progress) as advance:
            found = lipschitz(
                network,
                x,
                eps,
                notion,
                units=settings.units,
                settings=settings.method,
                seed=seed,
                progress=advance,
            )
        means[notion] = float(found.mean())
    return {"means": means, "count": len(x)}


@torch.no_grad()
def correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The indices of the images that are classified as y."""
    with evaluated(model):
        hits = torch.cat(
            [model(a).argmax(1) == b for a, b in zip(torch.split(x, 1000), torch.split(y, 1000), strict=True)]
        )
    return torch.nonzero(hits).flatten()
