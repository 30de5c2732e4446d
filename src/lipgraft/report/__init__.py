"""What a run found: the table and one self-contained HTML page."""

from lipgraft.report.experiment import experiment_summary, markdown
from lipgraft.report.page import render, render_experiment
from lipgraft.report.published import PUBLISHED, published
from lipgraft.report.results import (
    Example,
    ExampleVerdict,
    ExperimentResults,
    ImageResult,
    LayerResult,
    ModelResult,
    Published,
    RunResults,
)
from lipgraft.report.table import (
    COLUMNS,
    checked,
    headline,
    heads,
    other_images,
    published_cell,
    rows,
    spoken,
    summary,
    texts,
    undecided,
)

__all__ = [
    "COLUMNS",
    "PUBLISHED",
    "Example",
    "ExampleVerdict",
    "ExperimentResults",
    "ImageResult",
    "LayerResult",
    "ModelResult",
    "Published",
    "RunResults",
    "checked",
    "experiment_summary",
    "headline",
    "heads",
    "markdown",
    "other_images",
    "published",
    "published_cell",
    "render",
    "render_experiment",
    "rows",
    "spoken",
    "summary",
    "texts",
    "undecided",
]
