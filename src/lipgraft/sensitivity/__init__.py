"""The local Lipschitz constant of a network around an image, in four notions."""

from lipgraft.sensitivity.api import lipschitz
from lipgraft.sensitivity.problem import NOTIONS, LipschitzSettings
from lipgraft.sensitivity.units import UNITS

__all__ = ["NOTIONS", "UNITS", "LipschitzSettings", "lipschitz"]
