"""The search for counterexamples beside the proofs: what it finds, what it keeps, and how much it may do."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hard_images import EPS, SETTINGS, images, network
from lipgraft.attacks import wide
from lipgraft.verification import VerifySettings, verify
from lipgraft.verification.branch_and_bound import hunt
from lipgraft.verification.branch_and_bound.hunt import Hunt

INPUTS, NOISE = 12, 16


def masked() -> nn.Sequential:
    """f_0 - f_1 = 1 - 10 relu(x_1 + ... + x_12 - 10): below zero in one corner of [-1, 1]^12 alone, and constant, with
    its gradient, elsewhere. Terms 5 (relu(z) - relu(-z) - z), which are zero, lead the bounds to other corners."""
    z = torch.randn(NOISE, INPUTS, generator=torch.Generator().manual_seed(0))
    most = float(z.abs().sum(1).max()) + 1  # z + most is never below zero
    first, last = nn.Linear(INPUTS, 1 + 3 * NOISE), nn.Linear(1 + 3 * NOISE, 2)
    first.weight.data = torch.cat([torch.ones(1, INPUTS), z, -z, z])
    first.bias.data = torch.cat([torch.tensor([-10.0]), torch.zeros(2 * NOISE), torch.full((NOISE,), most)])
    zero = 5 * torch.cat([torch.ones(NOISE), -torch.ones(NOISE), -torch.ones(NOISE)])
    last.weight.data = torch.stack(
        [torch.cat([torch.zeros(1), zero]), torch.cat([torch.tensor([10.0]), torch.zeros(3 * NOISE)])]
    )
    last.bias.data = torch.tensor([1 + 5 * NOISE * most, 0.0])
    return nn.Sequential(first, nn.ReLU(), last)


def asked(every: int, **attack: Any) -> VerifySettings:
    return VerifySettings().changed(
        attack={"search_every": every, **attack},
        optimise={"refine": "none"},
        branch={"batch": 16},
        limits={"max_subproblems": 300},
    )


def test_a_counterexample_that_attacks_and_bounds_miss_is_found_near_the_worst_points() -> None:
    model, x, y = masked(), torch.zeros(1, INPUTS), torch.zeros(1, dtype=torch.int64)
    (missed,) = verify(model, x, y, 1.0, low=None, high=None, settings=asked(0))
    assert missed.status == "unknown"
    (found,) = verify(model, x, y, 1.0, low=None, high=None, settings=asked(2))
    assert found.status == "falsified"
    assert found.method == "bab"
    point = found.counterexample
    assert point is not None
    assert (point.abs() <= 1).all()
    assert int(model(point[None]).argmax()) == 1


def test_where_there_is_none_the_verdict_is_the_same_with_and_without() -> None:
    """The corner's value is -19 with 10; with 0.4 it is 0.2."""
    model, x, y = masked(), torch.zeros(1, INPUTS), torch.zeros(1, dtype=torch.int64)
    model[2].weight.data[1] *= 0.04
    for every in (0, 1):
        (verdict,) = verify(model, x, y, 1.0, low=None, high=None, settings=asked(every))
        assert verdict.status != "falsified"
    x, y = images()
    verdicts = [verify(network(), x, y, EPS, settings=SETTINGS.changed(attack={"search_every": n})) for n in (0, 1)]
    assert [v.status for v in verdicts[0]] == [v.status for v in verdicts[1]]
    assert {v.status for v in verdicts[0]} == {"verified", "falsified"}


def test_every_ascent_begins_in_its_box(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = wide.Wide.to_the_end, [0]

    def watching(ascents: wide.Wide, *rest: Any) -> Tensor:
        seen[0] += len(ascents.x)
        assert (ascents.x >= ascents.lower).all()
        assert (ascents.x <= ascents.upper).all()
        return before(ascents, *rest)

    monkeypatch.setattr(wide.Wide, "to_the_end", watching)
    x, y = images()
    settings = SETTINGS.changed(attack={"search_every": 3, "search_steps": 1}, branch={"batch": 2})
    verdicts = verify(network(), x, y, EPS, settings=settings)
    assert seen[0] > 0
    assert {v.status for v in verdicts} == {"verified", "falsified"}


def test_no_search_is_made_when_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("an ascent")

    monkeypatch.setattr(wide.Wide, "to_the_end", never)
    x, y = images()
    assert {v.status for v in verify(network(), x, y, EPS, settings=SETTINGS)} == {"verified", "falsified"}


def test_an_image_takes_no_more_steps_than_its_subproblems_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [0]
    before = wide.Wide.to_the_end

    def counting(ascents: wide.Wide, *rest: Any) -> Tensor:
        taken[0] += len(ascents.x) * (ascents.steps + 1)
        return before(ascents, *rest)

    monkeypatch.setattr(wide.Wide, "to_the_end", counting)
    model, x, y = masked(), torch.zeros(1, INPUTS), torch.zeros(1, dtype=torch.int64)
    model[2].weight.data[1] *= 0.04
    (verdict,) = verify(model, x, y, 1.0, low=None, high=None, settings=asked(4, search_steps=5))
    rounds = 1 + verdict.subproblems // 16
    assert taken[0] > 0
    # The ascent from the newest point of a round comes on top.
    assert taken[0] <= hunt.STEPS_PER_SUBPROBLEM * verdict.subproblems + 6 * rounds


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=12), min_size=1, max_size=4
    )
)
def test_each_image_keeps_its_worst_points_in_order(batches: list[list[tuple[int, int]]]) -> None:
    """Against plain lists. A point is known by its value, which is its margin too; equal margins count once."""
    found = bare(4, kept=3)
    known: dict[int, set[int]] = defaultdict(set)
    for batch in batches:
        image = torch.tensor([place for place, _ in batch])
        value = torch.tensor([float(number) for _, number in batch])
        found._keep(image, value[:, None], value.long(), value)
        for place, number in batch:
            known[place] = set(sorted({*known[place], number})[:3])
        for place in range(4):
            count = len(known[place])
            assert found.margin[place, :count].tolist() == sorted(known[place])
            assert found.margin[place, count:].isinf().all()
            assert found.point[place, :count, 0].tolist() == sorted(known[place])
            assert found.target[place, :count].tolist() == sorted(known[place])


def bare(count: int, kept: int) -> Hunt:
    """A search that knows nothing yet, of images with one pixel."""
    found = Hunt.__new__(Hunt)
    found.point, found.margin = torch.zeros(count, kept, 1), torch.full((count, kept), torch.inf)
    found.target = torch.zeros(count, kept, dtype=torch.int64)
    return found


def test_images_that_have_ended_or_of_which_no_point_is_known_take_no_turns() -> None:
    found = bare(4, kept=2)
    found.job = SimpleNamespace(settings=VerifySettings().changed(attack={"search_steps": 4}))  # type: ignore[assignment]
    found.waiting = torch.tensor([12, 1000, 1000, 1000])
    found.margin[0, 0] = found.margin[1, 0] = found.margin[3, 0] = 0.5
    ended = [False, False, False, True]
    assert found._turns(ended).tolist() == [0] * 2 + [1] * hunt.MOST
    assert found.waiting.tolist() == [2, 1000 - 5 * hunt.MOST, 1000, 1000]


def test_points_of_nan_are_not_kept() -> None:
    found = bare(1, kept=2)
    found._keep(
        torch.zeros(3, dtype=torch.int64),
        torch.tensor([[1.0], [torch.nan], [2.0]]),
        torch.ones(3).long(),
        torch.tensor([1.0, torch.inf, 2.0]),
    )
    assert found.margin.tolist() == [[1.0, 2.0]]
    assert not found.point.isnan().any()


def test_without_memory_for_ascents_proofs_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(wide.Wide, "to_the_end", crowded)
    x, y = images()
    plain = verify(network(), x, y, EPS, settings=SETTINGS)
    asked_for = verify(network(), x, y, EPS, settings=SETTINGS.changed(attack={"search_every": 1}))
    assert [v.status for v in asked_for] == [v.status for v in plain]


def test_another_error_in_an_ascent_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(wide.Wide, "to_the_end", broken)
    x, y = images()
    plain = verify(network(), x, y, EPS, settings=SETTINGS)
    verdicts = verify(network(), x, y, EPS, settings=SETTINGS.changed(attack={"search_every": 1}))
    failed = [v for v in verdicts if v.status == "error"]
    assert failed
    assert all(v.method == "bab" and "a kernel failed" in str(v.reason) for v in failed)
    assert all(v.status in (before.status, "error") for v, before in zip(verdicts, plain, strict=True))
