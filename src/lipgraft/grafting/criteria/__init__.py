"""Criteria: which neurons become lines. Importing this package fills the registry."""

from lipgraft.grafting.criteria import backward, lg, ranked  # noqa: F401  (they fill the registry)
from lipgraft.grafting.criteria.registry import CRITERIA, Criterion, criterion, known_criterion

__all__ = ["CRITERIA", "Criterion", "criterion", "known_criterion"]
