"""Planes above neurons in branch and bound: more is proved, nothing wrong, whatever fails on the way."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.ascent import Optimised, optimise
from lipgraft.verification import Verdict, VerifySettings, verify
from lipgraft.verification.branch_and_bound import branching, lifting, planes
from lipgraft.verification.branch_and_bound.planes import Group
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from window_networks import SIZE, module

pytestmark = pytest.mark.xdist_group("planes above neurons")  # verdicts are kept, once for all tests of this file

EPS = 0.02
EAGER = VerifySettings().changed(
    attack={"restarts": 0, "search_every": 0},
    limits={"max_subproblems": 200},
    branch={"neuron_after": 4, "neuron_splits": 0, "plane_steps": 60, "batch": 16},
)


def images() -> tuple[nn.Module, Tensor, Tensor]:
    model = module("relu", 0).float()
    x = torch.rand(8, 2, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    return model, x, model(x).argmax(1)


@cache
def without_planes(arithmetic: str = EAGER.arithmetic) -> list[Verdict]:
    """What every test compares with; no test changes it."""
    model, x, y = images()
    return verify(model, x, y, EPS, settings=EAGER.changed(arithmetic=arithmetic, branch={"plane_steps": 0}))


@pytest.mark.long
@pytest.mark.parametrize("arithmetic", ["fast", "sound"])
def test_verdicts_do_not_contradict_those_without_and_more_is_proved(arithmetic: str) -> None:
    model, x, y = images()
    settings = EAGER.changed(arithmetic=arithmetic)
    lifted = verify(model, x, y, EPS, settings=settings)
    plain = without_planes(arithmetic)
    both = [{a.status, b.status} for a, b in zip(lifted, plain, strict=True)]
    assert {"verified", "falsified"} not in both
    proved = [{k for k, v in enumerate(verdicts) if v.status == "verified"} for verdicts in (lifted, plain)]
    assert proved[0] > proved[1]


@pytest.mark.long
def test_multipliers_take_short_steps_once_there_are_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = images()
    seen: list[tuple[bool, float]] = []

    def watched(function: LowerBound, *args: Any, lr_beta: float, **rest: Any) -> Optimised:
        seen.append((bool(function.planes), lr_beta))
        return optimise(function, *args, lr_beta=lr_beta, **rest)

    monkeypatch.setattr(branching, "optimise", watched)
    verify(model, x, y, EPS, settings=EAGER)
    long = EAGER.branch.lr_beta
    assert set(seen) == {(False, long), (True, long * branching.SHORT)}


@pytest.mark.long
def test_without_memory_for_planes_there_are_none_and_other_failures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = images()
    plain = without_planes()

    def fails(error: RuntimeError) -> list[Verdict]:
        def fit(*_: object) -> list[Group]:
            raise error

        monkeypatch.setattr(lifting, "fit", fit)
        return verify(model, x, y, EPS, settings=EAGER)

    assert [v.status for v in fails(torch.OutOfMemoryError("none left"))] == [v.status for v in plain]
    broken = fails(RuntimeError("a wrong shape"))
    assert any(v.status == "error" for v in broken)
    assert all(v.status in ("error", w.status) for v, w in zip(broken, plain, strict=True))


def test_without_room_for_their_slopes_there_are_no_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = images()
    plain = without_planes()
    monkeypatch.setattr(planes, "free_bytes", lambda _: 2**10)
    monkeypatch.setattr(lifting, "fit", lambda *_: pytest.fail("planes were fitted"))
    assert [v.status for v in verify(model, x, y, EPS, settings=EAGER)] == [v.status for v in plain]


def test_planes_that_gain_nothing_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = images()
    fitted: list[int] = []
    fit = planes.fit

    def watched(groups: list[Group], *rest: Any) -> list[Group]:
        found = fit(groups, *rest)
        fitted.append(len(found))
        return found

    monkeypatch.setattr(lifting, "fit", watched)
    # One step looks at the chords, and ends there.
    once = verify(model, x, y, EPS, settings=EAGER.changed(branch={"plane_steps": 1}))
    plain = without_planes()
    assert len(fitted) > 1
    assert max(fitted) == 0
    assert [(v.status, v.subproblems) for v in once] == [(v.status, v.subproblems) for v in plain]


@pytest.mark.long
def test_only_so_many_margins_have_planes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = images()
    counts: list[int] = []
    of = planes.UpperPlanes.of

    def counted(members: list[Group], *rest: object) -> planes.UpperPlanes:
        counts.append(len(members))
        return of(members, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(planes.UpperPlanes, "of", counted)
    monkeypatch.setattr(planes, "FEW", 2)
    verdicts = verify(model, x, y, EPS, settings=EAGER)
    assert max(counts) == 2
    assert {v.status for v in verdicts} <= {"verified", "falsified", "unknown"}


@pytest.mark.long
def test_neurons_without_planes_cost_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = images()
    shares: list[float] = []
    left_out: list[int] = []

    def watched(function: LowerBound, sub: Subproblems) -> Tensor:
        neurons = branching.costly(function, sub)
        cost = branching.scores(function, sub, branching.intercept).clamp(min=0)
        others = ~torch.isin(function.open, neurons)
        shares.append(float((cost * others).sum() / cost.sum()))
        left_out.append(int((others & function.free).any(0).sum()))
        return neurons

    monkeypatch.setattr(lifting, "costly", watched)
    verify(model, x, y, EPS, settings=EAGER)
    assert len(shares) > 2
    assert max(shares) <= branching.SPARED + 1e-4
    assert max(left_out) > 0
