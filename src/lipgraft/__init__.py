"""Turn an adversarially trained PyTorch network into one whose robustness can be proved, and prove it.

import lipgraft as lg
"""

import os

# Before PyTorch loads OpenMP: its threads spin while they wait for each other, and where another program has one of the
# cores, they take turns at spinning. Waiting asleep costs microseconds and is no slower on a machine of one's own.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from lipgraft import data, graft, models
from lipgraft.attack import attack
from lipgraft.bounds import bound
from lipgraft.box import Box
from lipgraft.lipschitz import lipschitz
from lipgraft.verify import verify
from lipgraft.version import __version__

__all__ = ["Box", "__version__", "attack", "bound", "data", "graft", "lipschitz", "models", "verify"]
