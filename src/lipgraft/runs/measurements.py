"""What a run measures of each model: accuracies, verdicts, unstable neurons, certified margins, Lipschitz constants."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft import models
from lipgraft.bounds import bound
from lipgraft.bounds.relaxations import unstable
from lipgraft.box import Box
from lipgraft.data import Dataset, images
from lipgraft.network import evaluated, trace
from lipgraft.runs.certification import identity_of, verify_run
from lipgraft.runs.directory import Handover, Result
from lipgraft.runs.models import Workshop
from lipgraft.runs.progress import VerifyProgress
from lipgraft.runs.recipe import AttackSettings, LipschitzRecipe, ModelRecipe
from lipgraft.runs.store import read_model, write_model
from lipgraft.sensitivity import lipschitz
from lipgraft.settings import to_mapping
from lipgraft.training import robust_accuracy
from lipgraft.verification import measure
from lipgraft.verification.incomplete import other_classes

BATCH = 100
"""Images bounded at once."""


def measure_model(shop: Workshop, model: ModelRecipe, network: nn.Module) -> None:
    """Everything the report says of one model."""
    recipe, run, data = shop.recipe, shop.run, shop.data
    known = {**identity(shop, network), "seed": recipe.seed}
    run.stage(
        f"{model.name}.accuracy",
        f"{model.title}: accuracy, clean and attacked",
        {"stage": "accuracy", **known, "attack": to_mapping(recipe.attack)},
        lambda _: accuracies(network, data, recipe.eps, recipe.attack, recipe.seed),
    )
    run.stage(
        f"{model.name}.certify",
        f"{model.title}: certifying {recipe.certify.count} images",
        {"stage": "certify", **known, "certify": to_mapping(recipe.certify)},
        lambda folder: _certify(shop, model, network, folder),
        _verdicts(shop, model),
    )
    run.stage(
        f"{model.name}.bounds",
        f"{model.title}: unstable neurons and margins",
        {"stage": "bounds", **known, "certify": to_mapping(recipe.certify)},
        lambda _: _bounds(shop, model, network),
    )
    run.stage(
        f"{model.name}.lipschitz",
        f"{model.title}: Lipschitz constants",
        {"stage": "lipschitz", **known, "lipschitz": to_mapping(recipe.lipschitz)},
        lambda _: lipschitz_constants(network, data, recipe.eps, recipe.lipschitz, recipe.seed, shop.progress),
    )


def identity(shop: Workshop, network: nn.Module) -> dict[str, str]:
    """What every measure of a network depends on; the settings of each come on top."""
    recipe = shop.recipe
    parts = identity_of(network, shop.data, recipe.eps, recipe.certify.verifier).texts()
    return {key: value for key, value in parts.items() if key != "settings"}


def _bounds(shop: Workshop, model: ModelRecipe, network: nn.Module) -> dict[str, Any]:
    """Unstable neurons over the images that reach the verifier, margins over those classified correctly."""
    recipe, data = shop.recipe, shop.data
    x, y = images(data.x_test[: recipe.certify.count]), data.y_test[: recipe.certify.count]
    rows = read_model(shop.run.store, model.name)
    reached = x[[row.image for row in rows if row.verdict.reached_verifier]]
    layers = unstable_shares(network, reached, recipe.eps)
    if model.graft is not None:
        start = models.load(shop.run.checkpoint(f"{model.name}-grafted"), shop.device)
        before = unstable_shares(start, reached, recipe.eps)
        layers = [{**layer, "unr_grafted": old["unr"]} for layer, old in zip(layers, before, strict=True)]
    return {"layers": layers, "margins": margins(network, x, y, recipe.eps, recipe.certify.margins)}


def _certify(shop: Workshop, model: ModelRecipe, network: nn.Module, folder: Path) -> Result:
    """VA, UNR and mean time over the images; their rows go to the run's results.sqlite when all are there.

    Until then the verifier's own store in the folder keeps what is decided, so that a killed run loses no image.
    """
    settings = shop.recipe.certify
    live = VerifyProgress(settings=settings.verifier)
    with live if shop.progress else nullcontext():
        rows = verify_run(
            network,
            shop.data,
            shop.recipe.eps,
            folder,
            count=settings.count,
            settings=settings.verifier,
            started=live.started,
            decided=live.decided,
            watch=live.bounded,
        )
    write_model(shop.run.store, model.name, rows)
    return asdict(measure([row.verdict for row in rows]))


def _verdicts(shop: Workshop, model: ModelRecipe) -> Handover:
    """A model's rows of results.sqlite, for other runs that certify the same model in the same way."""
    store = shop.run.store
    return Handover(
        ".sqlite",
        lambda place: write_model(place, "shared", read_model(store, model.name)),
        lambda place: write_model(store, model.name, read_model(place, "shared")),
    )


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
    right = correctly_classified(model, x, y)
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
    x = x[correctly_classified(model, x, y)[: settings.count]]
    means = {
        notion: float(
            lipschitz(
                model,
                x,
                eps,
                notion,
                units=settings.units,
                settings=settings.method,
                seed=seed,
                progress=progress,
            ).mean()
        )
        for notion in (settings.notions if len(x) else ())
    }
    return {"means": means, "count": len(x)}


@torch.no_grad()
def correctly_classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The indices of the images that are classified as y."""
    with evaluated(model):
        hits = torch.cat(
            [model(a).argmax(1) == b for a, b in zip(torch.split(x, 1000), torch.split(y, 1000), strict=True)]
        )
    return torch.nonzero(hits).flatten()
