"""Accuracy on clean images and under attack, in large batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipgraft.attacks.search import Progress, default_batch, search
from lipgraft.data import images
from lipgraft.errors import SettingsError
from lipgraft.network import evaluated, like, trace
from lipgraft.network.graph import Network
from lipgraft.network.precision import full_precision
from lipgraft.training.intervals import balls_of, margin_bounds
from lipgraft.training.task import pixel_box

MOST_BOUNDED = 1000
"""Images whose interval bounds are computed at once: those of all layers are kept."""

AT_ONCE = 20_000
"""Images that are on the device at once; the search takes its own batches of them."""

REPORT_AFTER = (1, 10, 100)
"""Numbers of restarts after which robust accuracy is reported."""


@dataclass(frozen=True, eq=False)
class RobustAccuracy:
    """clean: accuracy without attack; after: restarts -> accuracy that survives them; survivors: (N,), on the CPU."""

    clean: float
    after: dict[int, float]
    survivors: Tensor

    @property
    def value(self) -> float:
        """After all restarts."""
        return self.after[max(self.after)]


def accuracy(model: nn.Module, x: Tensor, y: Tensor, batch: int | None = None) -> float:
    """The share of images that the model classifies as y. x: (N, H, W, C) uint8, or (N, *shape) floats."""
    return float(_correct(model, x, y, batch).float().mean()) if len(x) else float("nan")


@torch.no_grad()
def interval_accuracy(model: nn.Module, x: Tensor, y: Tensor, eps: float, batch: int | None = None) -> float:
    """The share of images that interval bounds prove within eps: how training sees itself, and no sound proof.

    x: (N, H, W, C) uint8, or (N, *shape) floats; eps in raw pixels.
    """
    device = like(model, x).device
    size = batch or min(default_batch(device), MOST_BOUNDED)
    network: Network | None = None
    proved = []
    with full_precision():
        for some, labels in zip(torch.split(x, size), torch.split(y, size), strict=True):
            points, labels = _floats(some.to(device)), labels.to(device)
            network = network or trace(model, tuple(points.shape[1:]), check=False)
            lower, upper = pixel_box(points, eps)
            balls = balls_of(network, ((upper + lower) / 2, (upper - lower) / 2))
            proved.append(((margin_bounds(network, balls, labels) > 0).sum(1) == network.output_shape[0] - 1).float())
    return float(torch.cat(proved).mean()) if proved else float("nan")


def robust_accuracy(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    method: str = "pgd",
    steps: int = 100,
    restarts: int = 1,
    step_size: float | None = None,
    low: float | None = 0.0,
    high: float | None = 1.0,
    batch: int | None = None,
    seed: int = 0,
    report: tuple[int, ...] = REPORT_AFTER,
    progress: Progress | None = None,
) -> RobustAccuracy:
    """The share of images that are classified as y at every point the attack tries. Arguments as for `attack`.

    x: (N, H, W, C) uint8, or (N, *shape) floats. Restarts go in stages that end at the numbers in `report` and at
    `restarts`; images that one stage breaks are not in the next, and within a stage are dropped as they break.
    progress: called with the images done so far and their number; an image counts by the share of its restarts.
    """
    if len(x) == 0:
        raise SettingsError("robust accuracy needs at least one image.")
    device = like(model, x).device
    generator = torch.Generator(device).manual_seed(seed)
    alive = _correct(model, x, y, batch)
    clean = float(alive.float().mean())
    after: dict[int, float] = {}
    done = 0
    for stage in sorted({r for r in report if r < restarts} | {restarts}):
        parts = torch.split(torch.nonzero(alive).flatten(), AT_ONCE)
        lengths = [len(part) for part in parts]
        for i, part in enumerate(parts):
            # At most: restarts of this stage for the parts behind this one, and all later stages.
            later = sum(lengths[i + 1 :]) * (stage - done) + int(alive.sum()) * (restarts - stage)
            found = search(
                model,
                _floats(x[part.to(x.device)].to(device)),
                y[part.to(y.device)].to(device),
                eps,
                method,
                steps=steps,
                restarts=stage - done,
                step_size=step_size,
                low=low,
                high=high,
                batch=batch,
                generator=generator,
                progress=None if progress is None else _in_images(progress, later, restarts, len(x)),
            )
            alive[part] = ~found.broken.cpu()
        after[stage] = float(alive.float().mean())
        done = stage
    if progress is not None:
        progress(len(x), len(x))
    return RobustAccuracy(clean, after, alive)


def _in_images(progress: Progress, later: int, restarts: int, count: int) -> Progress:
    """What a search is to tell of its ascents, when at most so many more of them follow it."""
    return lambda done, here: progress(count - -(-(later + here - done) // restarts), count)


def _correct(model: nn.Module, x: Tensor, y: Tensor, batch: int | None) -> Tensor:
    """(N,) on the CPU."""
    device = like(model, x).device
    size = batch or default_batch(device)
    with torch.no_grad(), evaluated(model):
        parts = [
            model(_floats(some.to(device))).argmax(1) == labels.to(device)
            for some, labels in zip(torch.split(x, size), torch.split(y, size), strict=True)
        ]
    return torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.bool)


def _floats(x: Tensor) -> Tensor:
    return images(x) if x.dtype == torch.uint8 else x
