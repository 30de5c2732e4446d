"""Turn an adversarially trained PyTorch network into one whose robustness can be proved, and prove it.

import lipgraft as lg

Verbs are functions, here at the top, with their settings and results; the packages behind them are nouns.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lipgraft.errors import LipgraftError
from lipgraft.version import __version__

if TYPE_CHECKING:
    from lipgraft import (
        attacks,
        bounds,
        data,
        grafting,
        interop,
        models,
        network,
        progress,
        sensitivity,
        training,
        verification,
    )
    from lipgraft.attacks import attack
    from lipgraft.bounds import AlphaSettings, Bounds, bound
    from lipgraft.box import Box
    from lipgraft.grafting import graft
    from lipgraft.models import load, save
    from lipgraft.sensitivity import LipschitzSettings, lipschitz
    from lipgraft.training import TrainResult, TrainSettings, train
    from lipgraft.verification import Verdict, VerifySettings, verify

# Before PyTorch loads OpenMP: its threads spin while they wait for each other, and where another program has one of the
# cores, they take turns at spinning. Threads that wait asleep cost microseconds.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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
    "progress",
    "save",
    "sensitivity",
    "train",
    "training",
    "verification",
    "verify",
]

_ROOMS = {
    "AlphaSettings": "bounds",
    "Bounds": "bounds",
    "Box": "box",
    "LipschitzSettings": "sensitivity",
    "TrainResult": "training",
    "TrainSettings": "training",
    "Verdict": "verification",
    "VerifySettings": "verification",
    "attack": "attacks",
    "bound": "bounds",
    "graft": "grafting",
    "lipschitz": "sensitivity",
    "load": "models",
    "save": "models",
    "train": "training",
    "verify": "verification",
}
"""Where the verbs, settings and results live; the other names are rooms themselves."""


def __getattr__(name: str) -> Any:
    """A public name, when it is first asked for: loading PyTorch takes a second or two, and `--help` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _ROOMS:
        return import_module(f"lipgraft.{name}")
    found = getattr(import_module(f"lipgraft.{_ROOMS[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
