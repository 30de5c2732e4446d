"""The course of a run: the learning rate as a factor of its start value, the radius, what enters the average."""

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


BEND = 0.25
"""The share of the ramp that is a power of four; the rest is a straight line."""

LEAST = 1e-4
"""Of eps: a radius that changes no loss, and still has a tightness."""


def radius_share(settings: TrainSettings, passed: float) -> float:
    """The share of eps that interval bounds have: smoothly from about 0 to 1 over the ramp (Shi et al., 2021).

    a t^4 up to t = 1/4, then the straight line that continues it with the same slope to 1 at t = 1.
    """
    if settings.ramp_epochs == 0:
        return 1.0
    t = min(max((passed - settings.ramp_from) / settings.ramp_epochs, 0.0), 1.0)
    a = 1 / (4 * BEND**3 * (1 - BEND) + BEND**4)
    return max(LEAST, a * t**4 if t < BEND else a * BEND**4 + 4 * a * BEND**3 * (t - BEND))


def radius_shares(settings: TrainSettings, epoch: int, steps: int) -> list[float]:
    """The share of eps at each step of an epoch. epoch: counted from 0."""
    return [radius_share(settings, epoch + step / steps) for step in range(steps)]


def average_weights(settings: TrainSettings, epoch: int, steps: int) -> list[float]:
    """How far each step of an epoch moves the average to its weights: 1/(n + 1) after n others, 0 between them."""
    if settings.average_from is None:
        return [0.0] * steps
    since = [(epoch - settings.average_from) * steps + step for step in range(steps)]
    every = settings.average_every
    return [1 / (n // every + 1) if n >= 0 and n % every == 0 else 0.0 for n in since]


@schedule("constant")
def constant(settings: TrainSettings, passed: float) -> float:
    """1."""
    return 1.0


@schedule("multistep")
def multistep(settings: TrainSettings, passed: float) -> float:
    """`lr_drop` (a tenth) once more for each milestone passed."""
    return float(settings.lr_drop ** sum(passed >= milestone for milestone in settings.milestones))


@schedule("cosine")
def cosine(settings: TrainSettings, passed: float) -> float:
    """(1 + cos(pi t)) / 2 with t the share of whole epochs passed: changes between epochs only."""
    return (1 + math.cos(math.pi * math.floor(passed) / settings.epochs)) / 2


@schedule("hurry")
def hurry(settings: TrainSettings, passed: float) -> float:
    """One cycle: up in a straight line over the first fifth of the run, down to 0 over the rest, step by step."""
    share, top = passed / settings.epochs, 0.2
    return 0.02 + 0.98 * share / top if share < top else (1 - share) / (1 - top)
