"""What is measured of a model: accuracies, unstable neurons by layer, certified margins, Lipschitz constants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.bounds import bound
from lipgraft.bounds.margins import other_classes
from lipgraft.bounds.relaxations import unstable
from lipgraft.box import Box
from lipgraft.data import Dataset, images
from lipgraft.network import evaluated, trace
from lipgraft.progress import bar
from lipgraft.runs.recipe import AttackSettings, LipschitzRecipe
from lipgraft.sensitivity import lipschitz
from lipgraft.training import robust_accuracy

BATCH = 100
"""Images bounded at once."""


def accuracies(model: nn.Module, data: Dataset, eps: float, settings: AttackSettings, seed: int) -> dict[str, Any]:
    """SA and RA over the first test images."""
    x, y = data.x_test[: settings.count], data.y_test[: settings.count]
    found = robust_accuracy(
        model, x, y, eps, method=settings.method, steps=settings.steps, restarts=settings.restarts, seed=seed
    )
    after = {str(restarts): share for restarts, share in found.after.items()}
    return {"sa": found.clean, "ra": found.value, "after": after, "count": len(x)}


def unstable_shares(model: nn.Module, x: Tensor, eps: float) -> list[dict[str, Any]]:
    """Layer by layer: neurons, grafted ones, and the mean share that is unstable under CROWN's bounds.

    x: (B, C, H, W) in [0, 1]. Grafted neurons are never unstable, and count among all neurons.
    """
    network = trace(model, tuple(x.shape[1:]))
    nodes = [node for _, node in network.activations() if not node.auxiliary]
    counts = {node.name: 0 for node in nodes}
    for part in torch.split(x, BATCH) if len(x) else ():
        layers = bound(network, Box.linf(part, eps)).layers
        for node in nodes:
            counts[node.name] += int(unstable(node, *layers[node.name]).sum())
    rows = []
    for node in nodes:
        neurons = int(torch.Size(node.shape).numel())
        grafted = 0 if node.graft is None else int(node.graft.mask.sum())
        share = counts[node.name] / (neurons * len(x)) if len(x) else float("nan")
        rows.append({"name": node.name, "neurons": neurons, "grafted": grafted, "unr": share})
    return rows


def margins(model: nn.Module, x: Tensor, y: Tensor, eps: float, method: str) -> list[float]:
    """For each correctly classified image, the certified lower bound of (true logit - best other logit)."""
    right = correct(model, x, y)
    parts = torch.split(right, BATCH) if len(right) else ()
    return [value for part in parts for value in _margin(model, x[part], y[part], eps, method).tolist()]


def _margin(model: nn.Module, x: Tensor, y: Tensor, eps: float, method: str) -> Tensor:
    """(B,)"""
    network = trace(model, tuple(x.shape[1:]))
    _, rows = other_classes(y, network.output_shape[0], x.dtype)
    return bound(network, Box.linf(x, eps), method=method, C=rows).lower.amin(1)


def lipschitz_constants(
    model: nn.Module, data: Dataset, eps: float, settings: LipschitzRecipe, seed: int, progress: bool
) -> dict[str, Any]:
    """Each notion's mean over the first correctly classified test images."""
    x, y = images(data.x_test), data.y_test
    x = x[correct(model, x, y)[: settings.count]]
    means = {}
    for notion in settings.notions if len(x) else ():
        with bar(f"Lipschitz constants ({notion})", show=progress) as advance:
            found = lipschitz(
                model,
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
