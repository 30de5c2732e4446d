"""The stage that certifies a model: the verifier over the first test images, resumable, into results.sqlite."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict

from torch import nn

from lipgraft.pipeline import database
from lipgraft.pipeline.directory import Result
from lipgraft.pipeline.making import Workshop
from lipgraft.pipeline.recipe import ModelRecipe
from lipgraft.verify import measure, verify_run
from lipgraft.verify.progress import Progress


def certify(shop: Workshop, model: ModelRecipe, network: nn.Module) -> Result:
    """VA, UNR and mean time over the images; their rows go to the run's results.sqlite when all are there.

    Until then the verifier's own store keeps what is decided, so that a killed run loses no image.
    """
    settings, live = shop.recipe.certify, Progress()
    with live if shop.progress else nullcontext():
        rows = verify_run(
            network,
            shop.data,
            shop.recipe.eps,
            shop.scratch / "certifying" / model.name,
            count=settings.count,
            settings=settings.verifier,
            started=live.started,
            decided=live.decided,
            watch=live.bounded,
        )
    database.write(shop.run.store, model.name, rows)
    return asdict(measure([row.verdict for row in rows]))
