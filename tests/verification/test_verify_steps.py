"""How many steps of optimisation a subproblem gets, and how long they are, once splits alone gain nothing."""

from __future__ import annotations

import pytest
import torch

from hard_images import EPS, SETTINGS, images, network
from lipgraft.verification.branch_and_bound.branching import MANY, MOST_STEPS, SMALLEST
from lipgraft.verification.branch_and_bound.images import OpenImages
from lipgraft.verification.branch_and_bound.search import BranchAndBound
from lipgraft.verification.job import Job
from lipgraft.verification.stages import alpha_crown, crown


@pytest.fixture
def search() -> BranchAndBound:
    x, y = images()
    job = Job.of(network(), x, y, EPS, 0.0, 1.0, SETTINGS.changed(branch={"iterations": 2}))
    with torch.no_grad():
        crowned = crown(job, list(range(len(x))))
        left = [one for margins in crowned.rest for one in alpha_crown(job, margins).rest]
    return BranchAndBound(job, OpenImages.cat(left))


def test_halves_say_whether_their_bounds_are_better_than_their_parents(search: BranchAndBound) -> None:
    parents = search.pool.take(torch.arange(len(search.pool)))
    with torch.no_grad():
        children = search.step(parents)
    assert torch.equal(children.risen, children.sub.bound > parents.bound.repeat(2))
    assert children.risen.any()


@pytest.mark.parametrize(("share", "steps"), [(0.0, 4), (0.8, 4), (0.95, 2), (1.0, 2)])
def test_halves_that_are_no_better_than_their_parents_buy_more_steps(
    search: BranchAndBound, share: float, steps: int
) -> None:
    search.step.take_pains(torch.arange(100) < 100 * share)
    assert search.step.iterations == steps


def test_steps_grow_to_a_limit_and_not_because_of_a_few_halves(search: BranchAndBound) -> None:
    search.step.take_pains(torch.zeros(MANY - 1, dtype=torch.bool))
    assert search.step.iterations == 2
    for _ in range(20):
        search.step.take_pains(torch.zeros(MANY, dtype=torch.bool))
    assert search.step.iterations == MOST_STEPS


def test_more_steps_bound_the_same_halves_better(search: BranchAndBound) -> None:
    parents = search.pool.take(torch.arange(len(search.pool)))
    with torch.no_grad():
        few = search.step(parents).sub.bound
        while search.step.iterations < MOST_STEPS:
            search.step.take_pains(torch.zeros(MANY, dtype=torch.bool))
        many = search.step(parents).sub.bound
    assert (many > few).double().mean() > 0.9


def test_behind_convolutions_steps_get_shorter_and_more_in_turn(search: BranchAndBound) -> None:
    step, nothing_rises = search.step, torch.zeros(MANY, dtype=torch.bool)
    assert not step.windows  # fully connected: above they only get more
    step.windows = True
    seen = []
    while step.take_pains(nothing_rises):
        seen.append((step.size, step.iterations))
    assert seen[:4] == [(0.5, 2), (0.5, 4), (0.25, 4), (0.25, 8)]
    assert seen[-1] == (SMALLEST, MOST_STEPS)
    assert step.sizes == (SMALLEST, SMALLEST)
    parents = search.pool.take(torch.arange(len(search.pool)))
    with torch.no_grad():
        assert step(parents).risen.double().mean() > 0.9
