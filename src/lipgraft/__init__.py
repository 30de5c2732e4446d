"""Turn an adversarially trained PyTorch network into one whose robustness can be proved, and prove it.

import lipgraft as lg

Verbs are functions, here at the top, with their settings and results; the packages behind them are nouns.
"""

import os

# Before PyTorch loads OpenMP: its threads spin while they wait for each other, and where another program has one of the
# cores, they take turns at spinning. Threads that wait asleep cost microseconds.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from lipgraft import attacks, bounds, data, grafting, interop, models, network, sensitivity, training, verification
from lipgraft.attacks import attack
from lipgraft.bounds import AlphaSettings, Bounds, bound
from lipgraft.box import Box
from lipgraft.errors import LipgraftError
from lipgraft.grafting import graft
from lipgraft.models import load, save
from lipgraft.sensitivity import LipschitzSettings, lipschitz
from lipgraft.training import TrainResult, TrainSettings, train
from lipgraft.verification import Verdict, VerifySettings, verify
from lipgraft.version import __version__

__all__ = [
    "AlphaSettings",
    "Bounds",
    "Box",
    "LipgraftError",
    "LipschitzSettings",
    "TrainResult",
    "TrainSettings",
    "Verdict",
    "VerifySettings",
    "__version__",
    "attack",
    "attacks",
    "bound",
    "bounds",
    "data",
    "graft",
    "grafting",
    "interop",
    "lipschitz",
    "load",
    "models",
    "network",
    "save",
    "sensitivity",
    "train",
    "training",
    "verification",
    "verify",
]
