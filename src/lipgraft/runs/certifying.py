"""The stage that certifies a model: the verifier over the first test images, resumable, into results.sqlite."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from torch import nn

from lipgraft.runs import database
from lipgraft.runs.directory import Result
from lipgraft.runs.making import Workshop
from lipgraft.runs.recipe import ModelRecipe
from lipgraft.runs.shared import Handover
from lipgraft.verification import measure, verify_run
from lipgraft.verification.progress import Progress


def certify(shop: Workshop, model: ModelRecipe, network: nn.Module, folder: Path) -> Result:
    """VA, UNR and mean time over the images; their rows go to the run's results.sqlite when all are there.

    Until then the verifier's own store in the folder keeps what is decided, so that a killed run loses no image.
    """
    settings = shop.recipe.certify
    live = Progress(settings=settings.verifier)
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
    database.write(shop.run.store, model.name, rows)
    return asdict(measure([row.verdict for row in rows]))


def verdicts(shop: Workshop, model: ModelRecipe) -> Handover:
    """A model's rows of results.sqlite, for other runs that certify the same model in the same way."""
    store = shop.run.store
    return Handover(
        ".sqlite",
        lambda place: database.write(place, "shared", database.read(store, model.name)),
        lambda place: database.write(store, model.name, database.read(place, "shared")),
    )
