"""The results of `lipgraft verify --out RUN`: one model, as far as its verdicts go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lipgraft.report import ImageResult, ModelResult, RunResults
from lipgraft.verification import RESULTS, Row, measure, read_results


def collect_single(path: Path, config: Mapping[str, Any]) -> RunResults:
    """config: what the command wrote to config.yaml: checkpoint, data, eps, verify, versions."""
    rows = read_results(path / RESULTS)
    found = measure([row.verdict for row in rows])
    name = Path(config["checkpoint"]).stem
    model = ModelResult(
        name=name,
        title=name,
        sa=_number(found.sa),
        ra=_number(found.ra),
        va=_number(found.va),
        unr=_number(found.unr),
        time=_number(found.time),
        lipschitz={},
        images=tuple(map(image_result, rows)),
        over=found.over,
    )
    return RunResults(
        name=name,
        title=f"{name} on {config['data']}",
        data=config["data"],
        network=config["checkpoint"],
        eps=config["eps"],
        models=(model,),
        counts={"certified": len(rows)},
        settings=config["verify"],
        versions=config["versions"],
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def image_result(row: Row) -> ImageResult:
    v = row.verdict
    return ImageResult(row.image, row.label, v.status, v.method, v.seconds, v.reason, v.margin)
