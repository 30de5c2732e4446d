"""Hard images take turns: how many at a time, who is next, when a turn ends, and what the others get meanwhile."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipgraft.verification import Verdict, VerifySettings, verify
from lipgraft.verification.branch_and_bound import focus, planes
from lipgraft.verification.branch_and_bound.effort import DOUBLINGS, LATER, again, turn_left
from lipgraft.verification.branch_and_bound.focus import LAST, MOST, TRIAL, TURN, Focus
from lipgraft.verification.branch_and_bound.pool import Pool
from lipgraft.verification.branch_and_bound.search import BranchAndBound
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job
from window_networks import SIZE, module

AFTER = 300
EAGER = VerifySettings().changed(
    attack={"restarts": 0, "search_every": 0},
    limits={"max_subproblems": 200},
    branch={"neuron_after": 4, "neuron_splits": 0, "plane_steps": 40, "batch": 16},
)


def job(images: int = 1, settings: VerifySettings | None = None) -> Job:
    model = module("relu", 0).float()
    x = torch.rand(images, 2, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    return Job.of(model, x, model(x).argmax(1), 0.02, 0.0, 1.0, settings or VerifySettings())


def pool_of(margins: list[int], bounds: list[float] | None = None) -> Pool:
    """Two open subproblems of so many classes of each image, with these bounds."""
    pairs = [(image, target) for image, count in enumerate(margins) for target in range(count) for _ in range(2)]
    image, target = (torch.tensor([pair[k] for pair in pairs], dtype=torch.int64) for k in range(2))
    zero = torch.zeros(len(pairs), 1)
    bound = torch.tensor(bounds or [-1.0] * len(margins))[image]
    return Pool(Subproblems(image, target, bound, zero, zero[:, 0].long(), zero.long(), zero, zero, zero), 1)


def focus_on(taken: list[int], room: int) -> Focus:
    its = job()
    its.ledger.subproblems = dict(enumerate(taken))  # type: ignore[assignment]
    return Focus(its, list(range(len(taken))), room)


def costs(*values: float) -> Tensor:
    return torch.tensor(values)


def test_images_come_when_they_prove_hard_the_most_promising_first_as_many_as_there_is_room_for() -> None:
    turns = focus_on([AFTER, AFTER - 1, AFTER, AFTER], room=6)
    turns.exclusive = False
    pool, stopped = pool_of([3, 1, 3, 2]), [False] * 4
    assert turns.update(0, stopped, pool, lambda: costs(9, 1, 2, 4))
    assert set(turns.ends) == {2, 3}  # image 0 has no room, image 1 is not hard
    assert turns.others(stopped) == [True, True, False, False]


@pytest.mark.parametrize("last", ["proves hard", "ends"])
def test_on_a_cpu_everyone_is_tried_before_anyone_has_a_turn(last: str) -> None:
    turns = focus_on([AFTER, AFTER - 1, AFTER], room=1)
    pool, stopped = pool_of([1, 1, 1]), [False] * 3
    for rounds in range(20):
        assert not turns.update(rounds, stopped, pool, lambda: costs(1, 3, 2))
    assert not turns.ends
    if last == "ends":
        stopped[1] = True
    else:
        turns.ledger.subproblems[1] = AFTER
    assert turns.update(20, stopped, pool, lambda: costs(1, 3, 2))
    assert set(turns.ends) == {0}


def test_an_image_with_more_margins_than_there_is_room_for_comes_alone() -> None:
    turns = focus_on([AFTER] * 2, room=4)
    assert turns.update(0, [False] * 2, pool_of([7, 1]), lambda: costs(1, 2))
    assert set(turns.ends) == {0}


def test_who_does_not_fit_is_not_overtaken() -> None:
    turns = focus_on([AFTER] * 3, room=6)
    assert turns.update(0, [False] * 3, pool_of([4, 3, 1]), lambda: costs(1, 2, 3))
    assert set(turns.ends) == {0}


def test_a_turn_ends_with_the_image_or_when_its_tree_has_doubled_and_everyone_gets_one_before_anyone_gets_two() -> None:
    turns = focus_on([AFTER, AFTER, AFTER], room=1)
    pool, stopped = pool_of([1, 1, 1]), [False] * 3
    taken = turns.ledger.subproblems
    turns.update(0, stopped, pool, lambda: costs(1, 2, 3))
    assert turns.ends == {0: TURN * AFTER}
    taken[0] = TURN * AFTER - 1
    assert not turns.update(1, stopped, pool, lambda: costs(1, 2, 3))
    taken[0] = TURN * AFTER
    assert turns.update(2, stopped, pool, lambda: costs(1, 2, 3))
    assert set(turns.ends) == {1}
    stopped[1] = True
    assert turns.update(3, stopped, pool, lambda: costs(1, 2, 3))
    assert set(turns.ends) == {2}
    taken[2] = TURN * AFTER + 7
    assert turns.update(4, stopped, pool, lambda: costs(1, 2, 3))
    assert turns.ends == {0: LATER * TURN * AFTER}


def test_after_that_it_is_the_turn_of_who_needs_least_as_far_as_the_last_turn_tells() -> None:
    turns = focus_on([AFTER, AFTER], room=1)
    stopped, taken = [False] * 2, turns.ledger.subproblems
    turns.update(0, stopped, pool_of([1, 1], [-1.0, -1.0]), lambda: costs(1, 2))
    taken[0] = TURN * AFTER
    turns.update(1, stopped, pool_of([1, 1], [-0.9, -1.0]), lambda: costs(1, 2))
    assert set(turns.ends) == {1}
    taken[1] = TURN * AFTER
    turns.update(2, stopped, pool_of([1, 1], [-0.9, -0.2]), lambda: costs(1, 2))
    assert set(turns.ends) == {1}
    taken[1] *= LATER
    turns.update(3, stopped, pool_of([1, 1], [-0.9, -0.2]), lambda: costs(1, 2))  # it stood still
    assert set(turns.ends) == {0}


def test_what_an_image_needs_is_reckoned_from_what_its_last_doublings_gained() -> None:
    assert turn_left((300, -3.0), (1200, -1.0)) == pytest.approx(1200)  # one more doubling
    assert turn_left((300, -3.0), (600, -2.0)) == pytest.approx(600 * 3)
    assert turn_left((300, -1.0), (600, -1.0)) == 600 * (2**DOUBLINGS - 1)
    assert turn_left((300, -1.0), (600, -1.5)) == 600 * (2**DOUBLINGS - 1)
    assert turn_left((0, -2.0), (4, -1.0)) == pytest.approx(4 * 3)  # a turn may begin before the first subproblem,
    assert turn_left((0, -2.0), (0, -1.0)) == 0  # and end before it


def test_an_image_that_nobody_waits_for_goes_on_and_is_not_new() -> None:
    turns = focus_on([AFTER], room=1)
    assert turns.update(0, [False], pool_of([1]), lambda: costs(1))
    turns.ledger.subproblems[0] = TURN * AFTER
    assert not turns.update(1, [False], pool_of([1]), lambda: costs(1))
    assert turns.ends == {0: LATER * TURN * AFTER}


@given(
    margins=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    room=st.integers(1, 12),
    promise=st.lists(st.integers(1, 1000), min_size=12, max_size=12),
)
def test_nobody_has_a_second_turn_before_everyone_has_had_one(
    margins: list[int], room: int, promise: list[int]
) -> None:
    turns = focus_on([AFTER] * len(margins), room)
    pool, taken = pool_of(margins), turns.ledger.subproblems
    stopped = [False] * len(margins)
    for rounds in range(400):
        turns.update(rounds, stopped, pool, lambda: torch.tensor(promise[: len(margins)]))
        assert turns.ends
        wide = [margins[place] for place in turns.ends]
        assert sum(wide) <= room or len(wide) == 1
        for place in turns.ends:
            taken[place] += 100
        if len(turns.began) < len(margins):  # not everyone has had a turn: so nobody has had two
            assert all(end == TURN * AFTER for end in turns.ends.values())
    assert len(turns.began) == len(margins)


def test_a_gpu_works_on_images_whose_turn_it_is_and_on_those_on_trial_and_then_on_the_others() -> None:
    turns = focus_on([TRIAL, TRIAL - 1, TRIAL, TRIAL - 1], room=1)
    turns.exclusive = False
    stopped, pool = [False, False, False, True], pool_of([1, 1, 1, 1])
    turns.update(0, stopped, pool, lambda: costs(1, 5, 9, 9))
    assert turns.resting(stopped) == [False, False, True, True]
    assert turns.shares(costs(1, 1000, 1, 1), stopped, pool, 100).tolist() == [1, MOST, LAST, LAST]


def test_a_cpu_leaves_the_others_alone_and_tries_no_more_images_at_a_time_than_fill_a_round() -> None:
    turns = focus_on([AFTER, AFTER, 0, 0, 0], room=1)
    stopped, pool = [False] * 5, pool_of([1, 1, 1, 1, 1], [-1.0, -1.0, -3.0, -1.0, -2.0])
    turns.update(0, stopped, pool, lambda: costs(1, 2, 1, 1, 1))
    assert turns.resting(stopped) == [True] * 5
    none = torch.inf
    assert turns.shares(costs(1, 1, 1, 1, 1000), stopped, pool, 4).tolist() == [none, none, none, 1, MOST]
    assert turns.shares(costs(1, 1, 1, 1, 1), stopped, pool, 2).tolist() == [none, none, none, 1, none]
    stopped[2:] = [True] * 3
    turns.update(1, stopped, pool, lambda: costs(1, 2, 1, 1, 1))
    assert turns.resting(stopped) == [False, True, True, True, True]
    assert turns.shares(costs(1, 1, 1, 1, 1), stopped, pool, 4).tolist() == [1, none, none, none, none]


def test_images_are_not_forgotten_where_they_count_as_hard_only_after_their_trial() -> None:
    turns = focus_on([TRIAL, TRIAL], room=1)
    turns.after = 2 * TRIAL
    pool, stopped = pool_of([1, 1]), [False] * 2
    assert not turns.update(0, stopped, pool, lambda: costs(1, 1))
    for exclusive in (True, False):
        turns.exclusive = exclusive
        assert turns.shares(costs(1, 1), stopped, pool, 100).isfinite().all()


def test_what_is_done_again_is_done_at_every_doubling_but_the_first_time_later() -> None:
    marks = [AFTER]
    while len(marks) < 5:
        marks.append(again(AFTER, marks[-1]))
    assert marks == [300, 1500, 3000, 6000, 12000]
    assert again(0, 0) > 0


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[set[int], set[int]]]:
    """Filled with the images that have planes, and those whose turn it is, whenever planes were fitted."""
    seen: list[tuple[set[int], set[int]]] = []
    lift = BranchAndBound._lift

    def after(search: BranchAndBound) -> None:
        before = search.images.planes
        lift(search)
        held = search.images.planes
        if held is not None and held is not before:
            seen.append(({group.image for group in held.members}, set(search.focus.ends)))

    monkeypatch.setattr(BranchAndBound, "_lift", after)
    return seen


def verdicts(settings: VerifySettings = EAGER) -> list[Verdict]:
    model = module("relu", 0).float()
    x = torch.rand(8, 2, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    return verify(model, x, model(x).argmax(1), 0.02, settings=settings)


@pytest.mark.long
@pytest.mark.parametrize("exclusive", [True, False])
def test_turns_prove_nothing_wrong_and_images_have_planes_only_in_theirs(
    exclusive: bool, monkeypatch: pytest.MonkeyPatch, watched: list[tuple[set[int], set[int]]]
) -> None:
    plain = verdicts(EAGER.changed(branch={"plane_steps": 0}))
    monkeypatch.setattr(planes, "FEW", 2)
    monkeypatch.setattr(focus, "TRIAL", 8)
    begin = Focus.__init__

    def begun(self: Focus, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        self.exclusive = exclusive

    monkeypatch.setattr(Focus, "__init__", begun)
    turns = verdicts()
    assert {"verified", "falsified"} not in [{a.status, b.status} for a, b in zip(turns, plain, strict=True)]
    assert sum(v.status == "verified" for v in turns) >= sum(v.status == "verified" for v in plain)
    assert len(watched) > 1
    assert all(lifted <= turn for lifted, turn in watched)
    assert len(set.union(*(lifted for lifted, _ in watched))) > 1, "one image alone had a turn"
