"""The stages that measure a model of a run, each kept when it is finished."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipgraft import models
from lipgraft.checker.follow import Follower
from lipgraft.data import images
from lipgraft.errors import counted
from lipgraft.interop import CertificateFolder
from lipgraft.runs import measurements
from lipgraft.runs.certification import identity_of, verify_run
from lipgraft.runs.directory import Handover, Result
from lipgraft.runs.models import Workshop
from lipgraft.runs.progress import VerifyProgress
from lipgraft.runs.recipe import ModelRecipe
from lipgraft.runs.store import Row, has_model, read_model, write_model
from lipgraft.settings import to_mapping
from lipgraft.verification import measure


def measure_model(shop: Workshop, model: ModelRecipe, network: nn.Module) -> None:
    """Everything the report says of one model."""
    recipe, run, data = shop.recipe, shop.run, shop.data
    known = {**identity(shop, network), "seed": recipe.seed}
    run.stage(
        f"{model.name}.accuracy",
        f"{model.title}: accuracy, clean and attacked",
        {"stage": "accuracy", **known, "attack": to_mapping(recipe.attack)},
        lambda folder: measurements.accuracies(
            network, data, recipe.eps, recipe.attack, recipe.seed, folder, shop.progress
        ),
    )
    if not has_model(run.store, model.name):
        run.forget(f"{model.name}.certify")
    run.stage(
        f"{model.name}.certify",
        f"{model.title}: certifying {counted(recipe.certify.count, 'image')}",
        {"stage": "certify", **known, "certify": recipe.certify.record()},
        lambda folder: _certify(shop, model, network, folder),
        _verdicts(shop, model),
    )
    run.stage(
        f"{model.name}.bounds",
        f"{model.title}: unstable neurons and margins",
        {"stage": "bounds", **known, "certify": recipe.certify.record()},
        lambda _: _bounds(shop, model, network),
    )
    run.stage(
        f"{model.name}.lipschitz",
        f"{model.title}: Lipschitz constants",
        {"stage": "lipschitz", **known, "lipschitz": to_mapping(recipe.lipschitz)},
        lambda _: measurements.lipschitz_constants(
            network, data, recipe.eps, recipe.lipschitz, recipe.seed, shop.progress
        ),
    )


def identity(shop: Workshop, network: nn.Module) -> dict[str, str]:
    """What every measure of a network depends on; the settings of each come on top."""
    recipe = shop.recipe
    parts = identity_of(network, shop.data, recipe.eps, recipe.certify.verifier).texts()
    return {key: value for key, value in parts.items() if key != "settings"}


def _bounds(shop: Workshop, model: ModelRecipe, network: nn.Module) -> dict[str, Any]:
    """Unstable neurons over the images that reach the verifier, margins over those classified correctly."""
    recipe, data = shop.recipe, shop.data
    part = slice(recipe.certify.start, recipe.certify.start + recipe.certify.count)
    x, y = images(data.x_test[part]), data.y_test[part]
    rows = read_model(shop.run.store, model.name)
    reached = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    reached[[row.image - part.start for row in rows if row.verdict.reached_verifier]] = True
    method = recipe.certify.margins
    layers, margins = measurements.shares_and_margins(network, x, y, recipe.eps, method, reached, shop.progress)
    if model.graft is not None:
        start = models.load(shop.run.checkpoint(f"{model.name}-grafted"), shop.device)
        before = measurements.unstable_shares(start, x[reached], recipe.eps, shop.progress)
        layers = [{**layer, "unr_grafted": old["unr"]} for layer, old in zip(layers, before, strict=True)]
    return {"layers": layers, "margins": margins}


def _certify(shop: Workshop, model: ModelRecipe, network: nn.Module, folder: Path) -> Result:
    """VA, UNR and mean time over the images; their rows go to the run's results.sqlite when all are there.

    Until then the verifier's own store in the folder keeps what is decided, so that a killed run loses no image. A
    proof that is written down goes to the checker at once, which works beside the search for the others.
    """
    settings = shop.recipe.certify
    proofs = None
    if settings.certificates:
        proofs = CertificateFolder(shop.run.path / "certificates" / model.name)
    live = VerifyProgress(settings=settings.verifier)
    checker = nullcontext() if proofs is None else Follower()
    with checker as follower, live if shop.progress else nullcontext():

        def decided(row: Row) -> None:
            if shop.progress:
                live.decided(row)
            if follower is not None and proofs is not None and proofs.has(row.image):
                follower.add(proofs.proof(row.image))

        rows = verify_run(
            network,
            shop.data,
            shop.recipe.eps,
            folder,
            start=settings.start,
            count=settings.count,
            settings=settings.verifier,
            started=live.started,
            decided=decided,
            watch=live.bounded if shop.progress else None,
            certificates=None if proofs is None else proofs.path,
        )
        checked = {} if follower is None or proofs is None else {"proofs": _checked(follower, proofs)}
    write_model(shop.run.store, model.name, rows)
    return {**asdict(measure([row.verdict for row in rows])), **checked}


def _checked(follower: Follower, proofs: CertificateFolder) -> dict[str, int]:
    """How many proofs there are, those from before an interruption too, and how many of them the checker accepts."""
    for file in sorted(proofs.path.glob("*.npz")):
        if ".counterexample" not in file.name:
            follower.add(file)
    outcomes = follower.outcomes()
    return {"count": len(outcomes), "accepted": sum(outcome.accepted for outcome in outcomes)}


def _verdicts(shop: Workshop, model: ModelRecipe) -> Handover:
    """A model's rows of results.sqlite, for other runs that certify the same model in the same way."""
    store = shop.run.store
    return Handover(
        ".sqlite",
        lambda place: write_model(place, "shared", read_model(store, model.name)),
        lambda place: write_model(store, model.name, read_model(place, "shared")),
    )
