"""Results as a run gives them to the report, made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lipgraft.report import ImageResult, LayerResult, ModelResult, RunResults


def model(name: str, *, va: float = 0.5, grafted: int = 0, **changes: object) -> ModelResult:
    """A model whose first images are verified, the last one falsified and the others unknown, 2 s after each other."""
    count = 10
    statuses = ["verified" if i < round(va * count) else "unknown" for i in range(count - 1)] + ["falsified"]
    images = tuple(
        ImageResult(i, i % 3, status, "pgd" if status == "falsified" else "bab", 0.01 * 3**i, ended=2.0 * i)
        for i, status in enumerate(statuses)
    )
    layers = (LayerResult("act1", 40, grafted, 0.3, 0.2 if grafted else None), LayerResult("act2", 10, 0, 0.1))
    made = ModelResult(
        name=name,
        title=name.title(),
        sa=0.9,
        ra=0.7,
        va=va,
        unr=0.26,
        time=1.5,
        lipschitz={"jacobian": 12.5, "sampled": 8.0},
        layers=layers,
        margins=tuple(float(v) for v in np.linspace(-3, 2, 30)),
        images=images,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def results(*models: ModelResult, **changes: object) -> RunResults:
    made = RunResults(
        name="trial",
        title="A trial",
        data="digits",
        network="digits-cnn",
        eps=0.1,
        models=models or (model("baseline", va=0.2), model("ours", va=0.6, grafted=20)),
        counts={"tested": 100, "certified": 10},
        settings={"name": "trial", "models": [{"name": "baseline"}]},
        versions={"lipgraft": "0"},
        hardware={"processor": "abacus"},
    )
    return replace(made, **changes)  # type: ignore[arg-type]
