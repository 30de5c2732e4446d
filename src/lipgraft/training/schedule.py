"""The course of the learning rate, as a factor of its start value."""

from __future__ import annotations

import math
from collections.abc import Callable

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.training.settings import TrainSettings

Schedule = Callable[[TrainSettings, float], float]
"""(settings, epochs passed so far, with a fraction inside an epoch) -> factor."""

SCHEDULES: dict[str, Schedule] = {}


def schedule(name: str) -> Callable[[Schedule], Schedule]:
    """Register a schedule under a name."""

    def add(function: Schedule) -> Schedule:
        SCHEDULES[name] = function
        return function

    return add


def schedule_named(name: str) -> Schedule:
    if name not in SCHEDULES:
        raise SettingsError(unknown_name("schedule", name, list(SCHEDULES)))
    return SCHEDULES[name]


def factors(settings: TrainSettings, epoch: int, steps: int) -> list[float]:
    """The factor of each step of an epoch. epoch: counted from 0."""
    function = schedule_named(settings.schedule)
    return [function(settings, epoch + step / steps) for step in range(steps)]


@schedule("constant")
def constant(settings: TrainSettings, passed: float) -> float:
    """1."""
    return 1.0


@schedule("multistep")
def multistep(settings: TrainSettings, passed: float) -> float:
    """A tenth more for each milestone passed."""
    return float(0.1 ** sum(passed >= milestone for milestone in settings.milestones))


@schedule("cosine")
def cosine(settings: TrainSettings, passed: float) -> float:
    """(1 + cos(pi t)) / 2 with t the share of whole epochs passed: changes between epochs only."""
    return (1 + math.cos(math.pi * math.floor(passed) / settings.epochs)) / 2


@schedule("hurry")
def hurry(settings: TrainSettings, passed: float) -> float:
    """One cycle: up in a straight line over the first fifth of the run, down to 0 over the rest, step by step."""
    share, top = passed / settings.epochs, 0.2
    return 0.02 + 0.98 * share / top if share < top else (1 - share) / (1 - top)
