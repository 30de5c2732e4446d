"""What a run found: the table and one self-contained HTML page."""

from lipgraft.report.page import render
from lipgraft.report.published import PUBLISHED, published
from lipgraft.report.results import (
    Example,
    ExampleVerdict,
    ImageResult,
    LayerResult,
    ModelResult,
    Published,
    RunResults,
)
from lipgraft.report.table import COLUMNS, headline, rows, summary

__all__ = [
    "COLUMNS",
    "PUBLISHED",
    "Example",
    "ExampleVerdict",
    "ImageResult",
    "LayerResult",
    "ModelResult",
    "Published",
    "RunResults",
    "headline",
    "published",
    "render",
    "rows",
    "summary",
]
