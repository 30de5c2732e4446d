"""Turn an adversarially trained PyTorch network into one whose robustness can be proved, and prove it.

import lipgraft as lg
"""

from lipgraft import data, graft, models
from lipgraft.attack import attack
from lipgraft.bounds import bound
from lipgraft.box import Box
from lipgraft.lipschitz import lipschitz
from lipgraft.verify import verify
from lipgraft.version import __version__

__all__ = ["Box", "__version__", "attack", "bound", "data", "graft", "lipschitz", "models", "verify"]
