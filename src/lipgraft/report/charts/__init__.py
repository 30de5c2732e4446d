"""The drawings of the page, by subject. Importing a file enters its figures into FIGURES, in the page's order."""

from lipgraft.report.charts import compare, layers, proofs  # noqa: F401  (they fill the registry)
from lipgraft.report.charts.registry import FIGURES, Figure, drawn

__all__ = ["FIGURES", "Figure", "drawn"]
