"""Certified objectives written again with dense matrices, for nn.Sequential networks of affine layers and ReLUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.grafting.activation import GraftedActivation
from lipgraft.training import TrainSettings
from lipgraft.training.task import Batch

Segment = tuple[Tensor, Tensor]
"""W (m, n) and b (m,)."""


def segments(model: nn.Sequential, shape: tuple[int, ...]) -> tuple[list[Segment], list[nn.Module]]:
    """The affine maps between the activations, and the activations; the last map comes after the last activation."""
    maps: list[Segment] = []
    activations: list[nn.Module] = []
    part: list[nn.Module] = []
    for layer in [*model, None]:
        if layer is not None and not isinstance(layer, nn.ReLU | GraftedActivation):
            part.append(layer)
            continue
        affine, size = nn.Sequential(*part), int(torch.tensor(shape).prod())
        zero = affine(torch.zeros(1, *shape))
        units = affine(torch.eye(size).reshape(size, *shape))
        bias = zero.flatten()
        maps.append(((units.flatten(1) - bias).T, bias))
        shape, part = tuple(zero.shape[1:]), []
        if layer is not None:
            activations.append(layer)
    return maps, activations


def lines(activation: nn.Module, lb: Tensor, ub: Tensor) -> tuple[Tensor, ...]:
    """Lower slope and intercept, upper slope and intercept, of CROWN. lb, ub: (B, n)."""
    on, off = (lb >= 0).float(), (ub <= 0).float()
    cross = 1 - on - off
    chord = ub / torch.where(cross > 0, ub - lb, 1.0)
    low, high = on + cross * (ub > -lb).float(), on + cross * chord
    low0, high0 = torch.zeros_like(lb), -cross * chord * lb
    if isinstance(activation, GraftedActivation):
        mask, gamma, omega = (t.flatten() for t in (activation.mask, activation.gamma, activation.omega))
        low, high = torch.where(mask, gamma, low), torch.where(mask, gamma, high)
        low0, high0 = torch.where(mask, omega, low0), torch.where(mask, omega, high0)
    return low, low0, high, high0


def pre_activations(
    model: nn.Sequential, centre: Tensor, radius: Tensor, shrink: float = 1.0
) -> tuple[list[Segment], list[nn.Module], list[tuple[Tensor, Tensor]]]:
    """The maps, the activations, and the interval (B, n) in front of each activation."""
    maps, activations = segments(model, tuple(centre.shape[1:]))
    lb, ub = (centre - radius).flatten(1), (centre + radius).flatten(1)
    found = []
    for (w, b), activation in zip(maps, activations, strict=False):
        lb, ub = lb @ w.clamp(min=0).T + ub @ w.clamp(max=0).T + b, ub @ w.clamp(min=0).T + lb @ w.clamp(max=0).T + b
        found.append((lb, ub))
        factor = torch.where((lb < 0) & (ub > 0), shrink, 1.0)
        low, high = lb.relu() * factor, ub.relu() * factor
        if isinstance(activation, GraftedActivation):
            mask, gamma, omega = (t.flatten() for t in (activation.mask, activation.gamma, activation.omega))
            ends = gamma * lb + omega, gamma * ub + omega
            low, high = torch.where(mask, torch.min(*ends), low), torch.where(mask, torch.max(*ends), high)
        lb, ub = low, high
    return maps, activations, [*found, (lb, ub)]


def ibp_margins(model: nn.Sequential, centre: Tensor, radius: Tensor, y: Tensor, shrink: float = 1.0) -> Tensor:
    """(B, n): for each class j the row W_y - W_j over the interval behind the last activation."""
    maps, _, intervals = pre_activations(model, centre, radius, shrink)
    (w, b), (lb, ub) = maps[-1], intervals[-1]
    rows = w[y][:, None] - w
    low = (rows.clamp(min=0) * lb[:, None] + rows.clamp(max=0) * ub[:, None]).sum(2)
    return low + (b[y][:, None] - b)


def folded_margins(model: nn.Sequential, centre: Tensor, radius: Tensor, y: Tensor, shrink: float = 1.0) -> Tensor:
    """(B, n): the same with the lines between two layers composed with them; all but the first layer are vectors."""
    maps, activations = segments(model, tuple(centre.shape[1:]))
    middles, radii, bends = [centre.flatten(1)], [radius.flatten(1)], []

    def spread(rows: Tensor) -> Tensor:
        """rows: (R, n), of what the last activation so far returns -> (B, R)."""
        total = torch.zeros(())
        for (w, _), (mask, gamma), r in reversed(list(zip(maps, bends, radii[1:], strict=False))):
            total = total + r @ (rows * ~mask).abs().T
            rows = (rows * mask * gamma) @ w
        return total + radii[0] @ rows.abs().T

    for (w, b), activation in zip(maps, activations, strict=False):
        c, r = middles[-1] @ w.T + b, spread(w)
        factor = torch.where(c.abs() < r, shrink, 1.0)
        low, high = (c - r).relu() * factor, (c + r).relu() * factor
        middle, width, mask, gamma = (high + low) / 2, (high - low) / 2, torch.zeros(len(w), dtype=torch.bool), b * 0
        if isinstance(activation, GraftedActivation):
            mask, gamma, omega = (t.flatten() for t in (activation.mask, activation.gamma, activation.omega))
            middle, width = torch.where(mask, gamma * c + omega, middle), torch.where(mask, gamma.abs() * r, width)
        middles.append(middle)
        radii.append(width)
        bends.append((mask, gamma))
    w, b = maps[-1]
    logits = middles[-1] @ w.T + b
    apart = torch.stack([spread(w[label] - w)[i] for i, label in enumerate(y)])
    return logits[torch.arange(len(y)), y][:, None] - logits - apart


def crown_margins(model: nn.Sequential, centre: Tensor, radius: Tensor, y: Tensor) -> Tensor:
    """(B, n): the rows of the margins taken back to the input through the lines of each activation."""
    maps, activations, intervals = pre_activations(model, centre, radius)
    w, b = maps[-1]
    rows, const = w[y][:, None] - w, b[y][:, None] - b
    for (w, b), activation, interval in reversed(list(zip(maps[:-1], activations, intervals[:-1], strict=True))):
        low, low0, high, high0 = (t[:, None] for t in lines(activation, *interval))
        up, down = rows.clamp(min=0), rows.clamp(max=0)
        const = const + (up * low0 + down * high0).sum(2)
        rows = up * low + down * high
        const, rows = const + rows @ b, rows @ w
    x, r = centre.flatten(1)[:, :, None], radius.flatten(1)[:, :, None]
    return const + (rows @ x).squeeze(2) - (rows.abs() @ r).squeeze(2)


def attacked(model: nn.Module, batch: Batch, settings: TrainSettings, seed: int) -> Tensor:
    """Ascents from random starts in the attack's box, for each image the point with the largest loss: of the ends, or
    of all points on the way."""
    generator, starts = torch.Generator().manual_seed(seed), settings.attack_restarts
    radius = settings.attack_reach * settings.eps * batch.share
    noise = 2 * torch.rand(starts * len(batch.x), *batch.x.shape[1:], generator=generator) - 1
    lower, upper = (batch.x - radius).clamp(min=0), (batch.x + radius).clamp(max=1)
    found = []
    for start in noise.chunk(starts):
        x = torch.max(torch.min(batch.x + radius * start, upper), lower)
        for _ in range(settings.attack_steps):
            found += [x.detach()] if settings.attack_worst else []
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), batch.y, reduction="sum"), x)
            step = (settings.attack_step_size or 2.5 / settings.attack_steps) * radius
            x = torch.max(torch.min(x + step * gradient.sign(), upper), lower).detach()
        found.append(x)
    losses = torch.stack([F.cross_entropy(model(x), batch.y, reduction="none") for x in found])
    return torch.stack(found)[losses.argmax(0), torch.arange(len(batch.x))]


def box(batch: Batch, eps: float) -> tuple[Tensor, Tensor]:
    """Centre and radius of the step's box."""
    lower, upper = (batch.x - eps * batch.share).clamp(min=0), (batch.x + eps * batch.share).clamp(max=1)
    return (lower + upper) / 2, (upper - lower) / 2


def loss(name: str, model: nn.Sequential, batch: Batch, settings: TrainSettings, seed: int) -> Tensor:
    """The value of a certified objective."""
    y, a = batch.y, settings.ibp_share
    centre, radius = box(batch, settings.eps)
    bounds = folded_margins if settings.fold_lines else ibp_margins

    def verified(margins: Tensor) -> Tensor:
        """log sum_j exp(m_y - m_j), which is the cross-entropy of -m as m_y = 0."""
        return torch.logsumexp(-margins, 1).mean()

    if name == "ibp":
        value = verified(bounds(model, centre, radius, y))
    elif name == "crown-ibp":
        low, high = bounds(model, centre, radius, y), crown_margins(model, centre, radius, y)
        value = verified(batch.share * low + (1 - batch.share) * high)
    elif name == "sabr":
        reach = settings.attack_reach * settings.eps * batch.share
        lower, upper = (batch.x - reach).clamp(min=0), (batch.x + reach).clamp(max=1)
        radius = settings.small_box * (upper - lower) / 2
        x = attacked(model, batch, settings, seed)
        centre = torch.max(torch.min(x, upper - radius), lower + radius)
        value = verified(bounds(model, centre, radius, y, settings.relu_shrink))
    else:
        logits, margins = model(attacked(model, batch, settings, seed)), bounds(model, centre, radius, y)
        under_attack, bounded = F.cross_entropy(logits, y), verified(margins)
        if name == "mtl-ibp":
            value = (1 - a) * under_attack + a * bounded
        elif name == "exp-ibp":
            value = under_attack ** (1 - a) * bounded**a
        else:
            assert name == "cc-ibp"
            apart = logits[torch.arange(len(y)), y][:, None] - logits
            value = verified((1 - a) * apart + a * margins)
    share = settings.clean_share
    return (1 - share) * value + share * F.cross_entropy(model(batch.x), y)
