"""`verify` on networks that rounding decides: a proof in sound arithmetic is never false, whatever was lost on the way.

What is asked of the two answers differs. "verified" speaks of the network in real numbers, and is compared with the
exact answer. "falsified" shows an input that the model itself, in its own arithmetic, misclassifies; where float32 and
the real numbers disagree that is right even if the real network is robust, so it is compared with the model, not with
the exact answer.
"""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from exact_fractions import fractions
from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.network import normalises
from lipgraft.verification import Verdict
from lipgraft.verification.branch_and_bound import lifting
from lipgraft.verification.branch_and_bound.planes import Group, fit
from rounding_families import (
    ROUNDING,
    Arithmetic,
    RoundingCase,
    Subject,
    beaten_at_the_image,
    false_proofs,
    rounding_case,
    score,
    settings,
    verdicts,
    with_planes,
)

pytestmark = pytest.mark.xdist_group("rounding")  # verdicts are kept, once for all tests of this file

BLOCK = 10  # networks in one test
LEAST = 1_000


def blocks() -> list[tuple[str, int]]:
    return [(name, first) for name, one in ROUNDING.items() for first in range(0, one.networks, BLOCK)]


def numbers(name: str, first: int, every: int = 1) -> range:
    return range(first, min(first + BLOCK, ROUNDING[name].networks), every)


@cache
def answers(
    name: str, number: int, arithmetic: Arithmetic = "sound", speaks_of: Subject = "real", attack: bool = False
) -> list[Verdict]:
    return verdicts(rounding_case(name, number), settings(arithmetic, speaks_of, attack=attack))


def replay(one: RoundingCase, k: int, verdict: Verdict) -> None:
    """The counterexample lies in the box, exactly, and the model, given it alone, prefers another class there."""
    assert verdict.counterexample is not None
    lower, upper = one.question.box(float(one.eps[k]))
    point = fractions(verdict.counterexample.flatten())
    assert bool(((lower <= point) & (point <= upper)).all())
    assert float32_margins(one, verdict.counterexample[None]) < 0


@torch.no_grad()
def float32_margins(one: RoundingCase, points: Tensor) -> Tensor:
    """The model's own margins at points (N, *shape), one after the other: (N,)."""
    y = one.question.y
    logits = torch.cat([one.model(point[None]) for point in points])
    return logits[:, y] - logits[:, 1 - y]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "first"), blocks())
def test_no_proof_is_false(name: str, first: int) -> None:
    for number in numbers(name, first):
        one = rounding_case(name, number)
        assert not false_proofs(one, answers(name, number)), (number, [float(margin) for margin in one.margin])


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "first"), blocks())
def test_no_proof_is_false_after_an_attack(name: str, first: int) -> None:
    for number in numbers(name, first, every=BLOCK):
        one = rounding_case(name, number)
        assert not false_proofs(one, answers(name, number, attack=True)), (number, [float(m) for m in one.margin])


# The families in which neurons are open, and how many margins get planes in one network of five.
LIFTED = {"underflow": 4, "needle_at_the_border": 3, "needle_inside": 4, "needle_of_doubles": 4}


@pytest.mark.long
@pytest.mark.parametrize("name", LIFTED)
def test_no_proof_is_false_with_planes_above_neurons(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[Group] = []

    def kept(groups: list[Group], *rest: Any) -> list[Group]:
        """Those that gain nothing, too, which a search leaves out."""
        better = {(group.image, group.target): group for group in fit(groups, *rest)}
        fitted.extend(better.get((group.image, group.target), group) for group in groups)
        return fitted[-len(groups) :]

    monkeypatch.setattr(lifting, "fit", kept)
    monkeypatch.setattr(lifting, "costly", lambda function, _: function.open[0])
    for number in range(0, ROUNDING[name].networks, 5):
        one = rounding_case(name, number)
        assert not false_proofs(one, verdicts(one, with_planes())), (number, [float(margin) for margin in one.margin])
    assert len(fitted) >= LIFTED[name]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "first"), blocks())
def test_every_counterexample_convinces_the_model(name: str, first: int) -> None:
    for number in numbers(name, first):
        one = rounding_case(name, number)
        for k, verdict in enumerate(answers(name, number)):
            if verdict.status == "falsified":
                replay(one, k, verdict)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "first"), blocks())
def test_no_margin_is_promised_that_the_network_does_not_keep(name: str, first: int) -> None:
    for number in numbers(name, first):
        one = rounding_case(name, number)
        for margin, verdict in zip(one.margin, answers(name, number), strict=True):
            if verdict.status == "verified":
                assert verdict.margin is not None
                assert Fraction(verdict.margin) <= margin, (number, float(margin), verdict)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "first"), blocks())
def test_no_image_alone_is_proved_where_it_ties_or_loses(name: str, first: int) -> None:
    """A radius of 0: the margin at the image is a number that rounds, too."""
    for number in numbers(name, first, every=BLOCK):
        one = beaten_at_the_image(rounding_case(name, number))
        assert not false_proofs(one, verdicts(one, settings("sound"))), (number, float(one.margin[0]))


# The network as float32 evaluates it.


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "first"), blocks())
def test_a_proof_about_float32_holds_where_the_model_is_evaluated(name: str, first: int) -> None:
    for number in numbers(name, first, every=5):
        one = rounding_case(name, number)
        if normalises(one.model):
            with pytest.raises(SettingsError, match="fold_batchnorm"):
                answers(name, number, speaks_of="float32")
            continue
        for k, verdict in enumerate(answers(name, number, speaks_of="float32")):
            if verdict.status == "verified":
                box = Box.inside(one.x[k : k + 1], one.eps[k : k + 1])
                side = torch.tensor(list(product([False, True], repeat=one.x[0].numel())))
                corners = torch.where(side.reshape(-1, *one.x.shape[1:]), box.upper, box.lower)
                points = torch.cat([one.x[k : k + 1], corners])
                assert bool((float32_margins(one, points) > 0).all()), (number, k)


@pytest.mark.long
def test_nothing_is_proved_about_float32_that_some_order_of_summation_breaks() -> None:
    broken = [k for k in range(ROUNDING["order"].networks) if rounding_case("order", k).some_order_fails]
    assert len(broken) >= ROUNDING["order"].networks // 2
    for number in broken:
        assert all(verdict.status != "verified" for verdict in answers("order", number, speaks_of="float32")), number


@pytest.mark.parametrize("speaks_of", ["real", "float32"])
def test_what_no_order_of_summation_breaks_is_proved(speaks_of: Subject) -> None:
    for number in range(ROUNDING["any_order"].networks):
        assert rounding_case("any_order", number).every_order_right
        robust, fragile = answers("any_order", number, speaks_of=speaks_of)
        assert robust.status == "verified", (number, robust)
        assert fragile.status != "verified", (number, fragile)


# The suite itself.


def test_there_are_1000_networks_each_with_a_robust_question_and_one_that_is_not() -> None:
    assert sum(one.networks for one in ROUNDING.values()) >= LEAST
    for name, one in ROUNDING.items():
        for number in range(0, one.networks, 5):
            assert rounding_case(name, number).robust == [True, False], (name, number)


# False proofs of one network in seven, far fewer than were seen: how a processor orders its sums does not matter.
FOOLED = {"underflow": 2, "flushed": 3, "cancellation": 3, "needle_at_the_border": 3, "needle_inside": 1}
FOOLED_IN_ALL = 30


@pytest.mark.long
def test_fast_arithmetic_is_fooled() -> None:
    """Otherwise the suite would show nothing."""
    false = {name: score(name, settings("fast"), every=7).false for name in ROUNDING}
    assert all(false[name] >= least for name, least in FOOLED.items()), false
    assert sum(false.values()) >= FOOLED_IN_ALL, false


@pytest.mark.parametrize("name", ROUNDING)
def test_the_worst_point_has_the_least_margin_and_no_other_point_less(name: str) -> None:
    rng = np.random.default_rng(0)
    for number in range(0, ROUNDING[name].networks, 5):
        one = rounding_case(name, number)
        for radius, margin in zip(one.question.radii, one.margin, strict=True):
            lower, upper = one.question.box(radius)
            least, worst = one.question.least(radius)
            assert least == margin == one.question.margin_at(worst)
            assert bool(((lower <= worst) & (worst <= upper)).all())
            for most in (1, 1, 7):  # corners, and points between them
                share = np.array([Fraction(int(k), most) for k in rng.integers(0, most + 1, len(lower))])
                assert one.question.margin_at(lower + share * (upper - lower)) >= margin


@pytest.mark.parametrize(
    "name", ["any_order", "cancellation", "convolution", "residual", "batch_norm", "small_deviation", "needle_inside"]
)
def test_fractions_agree_with_double_precision_where_that_is_enough(name: str) -> None:
    for number in range(4):
        one = rounding_case(name, number)
        y = one.question.y
        with torch.no_grad():
            logits = deepcopy(one.model).double()(one.x[:1].double())[0]
        exact = one.question.margin_at(fractions(one.question.x.flatten()))
        assert float(exact) == pytest.approx(float(logits[y] - logits[1 - y]), abs=1e-4)
