"""The registry of criteria. A criterion is a frozen dataclass: its fields are its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.grafting.scores import Scores
from lipgraft.network.graph import Network


class Criterion(Protocol):
    """Chooses which neurons become lines."""

    def masks(self, network: Network, scores: Scores, ratio: float) -> dict[str, Tensor]:
        """{activation name: boolean mask}, True = grafted; `ratio` is the share of all neurons to graft."""
        ...


CRITERIA: dict[str, type[Criterion]] = {}
T = TypeVar("T", bound=type[Criterion])


def criterion(name: str) -> Callable[[T], T]:
    """Register a criterion under the name that `select` and the command line use."""

    def register(cls: T) -> T:
        CRITERIA[name] = cls
        return cls

    return register


def known_criterion(name: str) -> type[Criterion]:
    if name not in CRITERIA:
        raise SettingsError(unknown_name("criterion", name, list(CRITERIA)))
    return CRITERIA[name]
