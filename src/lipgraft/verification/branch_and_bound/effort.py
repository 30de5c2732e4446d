"""Which images are worth the time of a search."""

from __future__ import annotations

import torch
from torch import Tensor

DOUBLINGS = 10.0  # of the work so far: an image that needs more counts as hopeless, and gets a thousandth of the time
TRIAL = 450  # subproblems before which nobody can tell: enough to see what better bounds of hidden neurons do
TRIAL_DOUBLINGS = 2.0  # the most that an image counts for until then


def work_left(worst: Tensor, first: Tensor, taken: Tensor) -> Tensor:
    """How much more work than so far each image needs, about: (I,), from 1 to 2^DOUBLINGS.

    worst, first: the worst bound of each image now and in the beginning; taken: its subproblems so far; all (I,).

    Every doubling of its subproblems lifts an image's worst bound by about as much as the one before. What is nearly
    proved goes first, and what is certain to fail does not take its time. The first subproblems tell too little for
    that: an image that looked hopeless then may be proved once its hidden neurons have better bounds.
    """
    gained = torch.nan_to_num(worst - first).clamp(min=0) / torch.log2(taken + 2)
    most = torch.where(taken < TRIAL, TRIAL_DOUBLINGS, DOUBLINGS)
    return torch.exp2(torch.minimum(-worst / gained.clamp(min=1e-9), most))
