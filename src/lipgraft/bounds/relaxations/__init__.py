"""One relaxation per activation: lines that hold it on an interval."""

from lipgraft.bounds.relaxations import relu, s_shaped  # noqa: F401  (they fill the registry)
from lipgraft.bounds.relaxations.lines import RELAXATIONS, Lines, Relaxation, relax, relaxation, unstable

__all__ = ["RELAXATIONS", "Lines", "Relaxation", "relax", "relaxation", "unstable"]
