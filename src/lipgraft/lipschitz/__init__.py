"""The local Lipschitz constant of a network around an image, in four notions."""

from lipgraft.lipschitz.api import lipschitz
from lipgraft.lipschitz.problem import NOTIONS
from lipgraft.lipschitz.settings import LipschitzSettings
from lipgraft.lipschitz.units import UNITS

__all__ = ["NOTIONS", "UNITS", "LipschitzSettings", "lipschitz"]
