"""What can be wrong with a specification file."""

from __future__ import annotations

from lipgraft.errors import LipgraftError


class VnnlibError(LipgraftError):
    """A VNNLIB file or an instances.csv is damaged, contradictory, or says something that cannot be verified."""
