"""Boxes in, bounds out: interval arithmetic, CROWN, alpha-CROWN."""

from lipgraft.bounds.api import METHODS, Bounds, bound
from lipgraft.bounds.ascent import AlphaSettings
from lipgraft.bounds.interval import interval_bounds
from lipgraft.bounds.sound import proved

__all__ = ["METHODS", "AlphaSettings", "Bounds", "bound", "interval_bounds", "proved"]
