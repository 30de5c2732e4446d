"""`verify` on networks built to break it: right where there is a right answer, never wrong anywhere."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from families import FAMILIES, Case, case, names
from lipgraft.verification import (
    AttackSettings,
    BranchSettings,
    Limits,
    OptimiseSettings,
    Verdict,
    VerifySettings,
    verify,
)

pytestmark = pytest.mark.xdist_group("families")  # their exact answers are kept, once for all these files

SETTINGS = {
    # As it comes.
    "default": VerifySettings(limits=Limits(timeout=120.0)),
    # No attack, no search and little optimisation: branching and the leaves' programs decide.
    "bare": VerifySettings(
        limits=Limits(timeout=120.0),
        attack=AttackSettings(restarts=0, search_every=0),
        optimise=OptimiseSettings(refine="none", iterations=1),
        branch=BranchSettings(iterations=2),
    ),
}
LEAST = 2_000


@pytest.mark.sampled(14)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("name", "number"), names())
def test_verdicts_are_right(name: str, number: int, settings: str) -> None:
    one = case(name, number)
    net = one.net
    chosen = SETTINGS[settings] if net.complete else SETTINGS[settings].changed(limits={"max_subproblems": 16})
    verdicts = verify(net.model, one.x, one.y, one.eps, low=net.low, high=net.high, settings=chosen)
    double = deepcopy(net.model).double()
    for k, verdict in enumerate(verdicts):
        judge(one, k, verdict, double)


def judge(one: Case, k: int, verdict: Verdict, double: nn.Module) -> None:
    """One verdict against the exact margin. double: the model in double precision."""
    margin = float(one.margin[k])
    wrong = "falsified" if margin > 0 else "verified"
    assert verdict.status not in (wrong, "error"), (k, margin, verdict)
    if one.net.complete:
        assert verdict.status == ("verified" if margin > 0 else "falsified"), (k, margin, verdict)
    slack = 1e-5 * one.scale
    if verdict.status == "verified":
        assert verdict.margin is not None
        assert 0 < verdict.margin <= margin + slack
    if verdict.status == "falsified":
        assert verdict.counterexample is not None
        point = verdict.counterexample.double()
        flat = point.flatten()
        assert bool(((flat >= one.lower[k]) & (flat <= one.upper[k])).all()), (k, verdict)
        with torch.no_grad():
            logits = double(point[None])[0]
        assert int(logits.argmax()) != int(one.y[k])


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("number", range(FAMILIES["duplicated"].networks))
def test_a_tie_is_never_verified(number: int, settings: str) -> None:
    net = case("duplicated", number).net
    x = torch.tensor([[0.5, 0.25, 0.75], [0.0, 1.0, 0.5]]).repeat_interleave(3, 0)
    y, eps = torch.tensor([1, 2, 3]).repeat(2), torch.tensor([0.0, 0.125, 0.5]).repeat(2)
    for verdict in verify(net.model, x, y, eps, settings=SETTINGS[settings]):
        assert verdict.status != "verified"


def test_at_least_2000_verdicts_are_compared_half_of_them_in_each_direction() -> None:
    assert sum(FAMILIES[name].images for name, _ in names()) * len(SETTINGS) >= LEAST
    assert all(one.images % 4 == 0 for one in FAMILIES.values())
