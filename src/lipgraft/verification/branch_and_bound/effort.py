"""Which images are worth the time of a search, and when more is done for one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DOUBLINGS = 10.0  # of the work so far: an image that needs more counts as hopeless
FIRST = 5  # times the subproblems after which an image counts as hard
LATER = 2  # times the subproblems that it has


def work_left(worst: Tensor, first: Tensor, taken: Tensor) -> Tensor:
    """How much more work than so far each image needs, about: (I,), from 1 to 2^DOUBLINGS.

    worst, first: the worst bound of each image now and in the beginning; taken: its subproblems so far; all (I,).

    Every doubling of its subproblems lifts an image's worst bound by about as much as the one before.
    """
    gained = torch.nan_to_num(worst - first).clamp(min=0) / torch.log2(taken + 2)
    return torch.exp2((-worst / gained.clamp(min=1e-9)).clamp(max=DOUBLINGS))


def turn_left(before: tuple[int, float], now: tuple[int, float]) -> float:
    """How many more subproblems an image needs, about, as it went during its last turn.

    before, now: its subproblems and its worst bound when the turn began and when it ended.
    """
    doublings, gained = math.log2(max(now[0], 1) / max(before[0], 1)), now[1] - before[1]
    needed = -now[1] * doublings / gained if gained > 0 else DOUBLINGS
    return now[0] * (2 ** min(needed, DOUBLINGS) - 1)


def again(after: int, taken: int) -> int:
    """The subproblems at which planes that an image gets now are worth fitting anew, as its tree has doubled.

    after: those from which on an image counts as hard; taken: those that it has had.
    """
    return max(FIRST * max(after, 1), LATER * taken)
