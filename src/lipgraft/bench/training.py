"""How long a training step takes: ours against the same step written plainly, in the same process, on the same device.

The step is that of a preset (FAT with gradient alignment, or certified training), with augmentation and update, on
random images of CIFAR-10's shape. Certified training is measured on networks without BatchNorm, at the full radius.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft import models
from lipgraft.bench.certified_step import plain_certified_step
from lipgraft.bench.resources import wait
from lipgraft.data import Dataset, images
from lipgraft.data.catalogue import entry
from lipgraft.data.dataset import crop_flip
from lipgraft.errors import SettingsError
from lipgraft.runs.provenance import device_name
from lipgraft.training import OBJECTIVES
from lipgraft.training.prepare import permutation, prepare
from lipgraft.training.schedule import factors
from lipgraft.training.settings import TrainSettings, preset
from lipgraft.training.step import runner

Stepper = Callable[[], None]


def bench_train(
    model_name: str = "cnn-b",
    batch: int = 128,
    device: str | torch.device = "cpu",
    *,
    preset_name: str = "pretrain",
    dataset: str = "cifar10",
    precision: str = "auto",
    steps: int = 100,
    repeats: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Median milliseconds per step (over `repeats` runs of `steps` steps) and peak memory in bytes (None on a CPU)."""
    place = torch.device(device)
    settings = replace(preset(preset_name), batch=batch, precision=precision)
    data = random_data(dataset, batch * (steps + 1), seed)
    certified = OBJECTIVES[settings.objective].bounds
    if not certified and settings.objective != "fat":
        raise SettingsError(f"there is no plain step of {settings.objective} to compare with.")

    def fresh() -> models.Classifier:
        return models.build(model_name, dataset, batchnorm=False if certified else None, seed=seed)

    def plain() -> Stepper:
        return (plain_certified_step if certified else plain_step)(fresh(), data, settings, place)

    eager_ms, eager_bytes = _measure(plain, place, steps, repeats)
    fast_ms, fast_bytes = _measure(lambda: _fast_step(fresh(), data, settings, place, seed), place, steps, repeats)
    return {
        "model": model_name,
        "preset": preset_name,
        "batch": batch,
        "device": device_name(place),
        "precision": precision,
        "steps": steps,
        "repeats": repeats,
        "eager_ms": eager_ms,
        "fast_ms": fast_ms,
        "speedup": eager_ms / fast_ms,
        "eager_peak_bytes": eager_bytes,
        "fast_peak_bytes": fast_bytes,
    }


def random_data(name: str, count: int, seed: int) -> Dataset:
    """Noise in the shape of a data set, all of it for training."""
    facts, generator = entry(name), torch.Generator().manual_seed(seed)
    channels, height, width = facts.input_shape
    x = torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, facts.classes, (count,), generator=generator)
    classes = tuple(str(i) for i in range(facts.classes))
    return Dataset(name, x, y, x[:1], y[:1], facts.mean, facts.std, classes, "crop-flip", 0)


def plain_step(model: nn.Module, data: Dataset, settings: TrainSettings, device: torch.device) -> Stepper:
    """The step as one would write it first: eager, float32, alignment by double backward, torch's own SGD."""
    model.to(device).train()
    x_all, y_all, eps = data.x_train.to(device), data.y_train.to(device), settings.eps
    generator = torch.Generator(device).manual_seed(0)
    optimiser = torch.optim.SGD(
        model.parameters(), settings.lr * 1e-3, momentum=settings.momentum, weight_decay=settings.weight_decay
    )

    def gradient(x: Tensor, y: Tensor, create_graph: bool = False) -> Tensor:
        return torch.autograd.grad(F.cross_entropy(model(x), y), x, create_graph=create_graph)[0]

    def noise(x: Tensor) -> Tensor:
        return (2 * torch.rand(x.shape, generator=generator, device=device) - 1) * eps

    def step() -> None:
        index = torch.randint(0, len(x_all), (settings.batch,), generator=generator, device=device)
        x, y = crop_flip(images(x_all[index]), generator), y_all[index]
        start = (x + noise(x)).clamp(0, 1).requires_grad_()
        delta = (start.detach() + 1.25 * eps * gradient(start, y).sign() - x).clamp(-eps, eps)
        loss = F.cross_entropy(model((x + delta).clamp(0, 1)), y)
        g1 = gradient(x.clone().requires_grad_(), y)
        g2 = gradient((x + noise(x)).requires_grad_(), y, create_graph=True)
        alignment = 1 - F.cosine_similarity(g1.flatten(1), g2.flatten(1), dim=1).mean()
        optimiser.zero_grad()
        total: Any = loss + settings.grad_align * alignment
        total.backward()
        if settings.clip:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()

    return step


def _fast_step(model: nn.Module, data: Dataset, settings: TrainSettings, device: torch.device, seed: int) -> Stepper:
    step = prepare(model, data, settings, device)
    take_step = runner(step)
    step.task.generator.manual_seed(seed)
    order, rates = permutation(seed, 0, len(step.x)), [1e-3 * f for f in factors(settings, 0, step.steps)]
    left = 0

    def counted() -> None:
        nonlocal left
        if left == 0:
            step.begin_epoch(order, rates)
            left = step.steps
        take_step()
        left -= 1

    return counted


def _measure(make: Callable[[], Stepper], device: torch.device, steps: int, repeats: int) -> tuple[float, int | None]:
    """(median milliseconds per step, peak bytes), the peak with everything that making the step needs."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    step = make()
    for _ in range(min(steps, 10)):
        step()
    times = []
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait(device)
        times.append(1000 * (time.perf_counter() - began) / steps)
    return statistics.median(times), torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
