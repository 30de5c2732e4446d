"""A step of certified training as one would write it first: eager, float32, layer by layer, torch's own Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.data import Dataset, images
from lipgraft.data.dataset import crop_flip
from lipgraft.errors import SettingsError
from lipgraft.models import Normalise
from lipgraft.training.settings import TrainSettings

KNOWN = ("ibp", "mtl-ibp", "sabr")


def plain_certified_step(
    model: nn.Sequential, data: Dataset, settings: TrainSettings, device: torch.device, share: float = 1.0
) -> Callable[[], None]:
    """model: layers in a row, without BatchNorm; share: of eps, the radius that the schedule has reached."""
    if settings.objective not in KNOWN:
        raise SettingsError(f"there is no plain step of {settings.objective} to compare with, only {', '.join(KNOWN)}.")
    model.to(device).train()
    x_all, y_all = data.x_train.to(device), data.y_train.to(device)
    generator = torch.Generator(device).manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), settings.lr * 1e-3, weight_decay=settings.weight_decay)
    weights = [layer.weight for layer in model if isinstance(layer, nn.Conv2d | nn.Linear)]
    eps = share * settings.eps
    reach = settings.attack_reach * eps

    def attacked(x: Tensor, y: Tensor) -> Tensor:
        worst, most = x, torch.full((len(x),), -torch.inf, device=device)
        lower, upper = (x - reach).clamp(min=0), (x + reach).clamp(max=1)
        size = 2.5 / settings.attack_steps if settings.attack_step_size is None else settings.attack_step_size
        for _ in range(settings.attack_restarts):
            noise = 2 * torch.rand(x.shape, generator=generator, device=device) - 1
            z = torch.max(torch.min(x + reach * noise, upper), lower)
            for _ in range(settings.attack_steps):
                z.requires_grad_()
                (gradient,) = torch.autograd.grad(F.cross_entropy(model(z), y, reduction="sum"), z)
                z = torch.max(torch.min(z.detach() + size * reach * gradient.sign(), upper), lower)
            with torch.no_grad():
                loss = F.cross_entropy(model(z), y, reduction="none")
            worst = torch.where((loss > most)[:, None, None, None], z, worst)
            most = torch.maximum(loss, most)
        return worst

    def step() -> None:
        index = torch.randint(0, len(x_all), (settings.batch,), generator=generator, device=device)
        x, y = crop_flip(images(x_all[index]), generator, pad=settings.crop), y_all[index]
        if settings.objective == "sabr":
            lower, upper = (x - reach).clamp(min=0), (x + reach).clamp(max=1)
            radius = settings.small_box * (upper - lower) / 2
            centre = torch.max(torch.min(attacked(x, y), upper - radius), lower + radius)
            loss, layers = _bounded_loss(model, centre - radius, centre + radius, y, settings.relu_shrink)
        else:
            loss, layers = _bounded_loss(model, (x - eps).clamp(min=0), (x + eps).clamp(max=1), y)
        if settings.objective == "mtl-ibp":
            under_attack = F.cross_entropy(model(attacked(x, y)), y)
            loss = (1 - settings.ibp_share) * under_attack + settings.ibp_share * loss
        if settings.clean_share:
            loss = (1 - settings.clean_share) * loss + settings.clean_share * F.cross_entropy(model(x), y)
        if settings.ibp_reg:
            loss = loss + (1 - share) * settings.ibp_reg * _regulariser(layers)
        if settings.l1:
            loss = loss + settings.l1 * sum(weight.abs().sum() for weight in weights)
        optimiser.zero_grad()
        total: Any = loss
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()

    return step


Intervals = list[tuple[Tensor, Tensor]]


def _bounded_loss(
    model: nn.Sequential, lower: Tensor, upper: Tensor, y: Tensor, shrink: float = 1.0
) -> tuple[Tensor, Intervals]:
    """CE(-m, y) of interval bounds m; the intervals of the normalised images and in front of each ReLU."""
    *layers, last = model
    found: Intervals = []
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            centre, radius = layer((lower + upper) / 2), (upper - lower) / 2
            radius = F.conv2d(radius, layer.weight.abs(), None, layer.stride, layer.padding)
            lower, upper = centre - radius, centre + radius
        elif isinstance(layer, nn.Linear):
            centre, radius = layer((lower + upper) / 2), F.linear((upper - lower) / 2, layer.weight.abs())
            lower, upper = centre - radius, centre + radius
        elif isinstance(layer, nn.ReLU):
            found.append((lower, upper))
            crosses = (lower < 0) & (upper > 0)
            lower, upper = layer(lower), layer(upper)
            if shrink != 1:
                upper = torch.where(crosses, shrink * upper, upper)
        elif isinstance(layer, Normalise | nn.ZeroPad2d | nn.Flatten):
            lower, upper = layer(lower), layer(upper)
            if isinstance(layer, Normalise):
                found.append((lower, upper))
        else:
            raise SettingsError(f"the plain step does not know layers of type {type(layer).__name__}.")
    assert isinstance(last, nn.Linear)
    rows = last.weight[y][:, None] - last.weight
    centre, radius = (lower + upper) / 2, (upper - lower) / 2
    margins = (rows @ centre[:, :, None] - rows.abs() @ radius[:, :, None]).squeeze(2)
    if last.bias is not None:
        margins = margins + last.bias[y][:, None] - last.bias
    return F.cross_entropy(-margins, y), found


def _regulariser(found: Intervals) -> Tensor:
    """Tightness and balance of Shi et al. (2021)."""

    def short(a: Tensor, b: Tensor) -> Tensor:
        return F.relu(0.5 - torch.minimum(a / b.clamp(min=1e-12), b / a.clamp(min=1e-12))) / 0.5

    (low, high), *layers = found
    start, total = ((high - low) / 2).mean(), low.new_zeros(())
    for lower, upper in layers:
        centre = (lower + upper) / 2
        active, inactive = (lower > 0).float(), (upper < 0).float()
        spread = (centre - centre.mean()) ** 2
        total = total + F.relu(0.5 - start / ((upper - lower) / 2).mean().clamp(min=1e-12)) / 0.5
        total = total + short((centre * active).mean(), (-centre * inactive).mean())
        total = total + short((spread * active).mean(), (spread * inactive).mean())
    return total / len(layers)
