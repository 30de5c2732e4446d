"""`verify`: what it says, and what it must never say."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.ascent import AlphaSettings, Optimised, optimise
from lipgraft.errors import SettingsError
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.network import call
from lipgraft.verification import (
    AttackSettings,
    BranchSettings,
    Limits,
    OptimiseSettings,
    Verdict,
    VerifySettings,
    api,
    measure,
    verify,
    verify_stream,
)
from lipgraft.verification.api import _attacked
from lipgraft.verification.job import Job
from lipgraft.verification.stages import attack
from lipgraft.verification.verdict import Outcome

FAST = VerifySettings(
    attack=AttackSettings(steps=10, restarts=1),
    optimise=OptimiseSettings(iterations=5, refine_iterations=3),
    branch=BranchSettings(iterations=3),
)
BARE = FAST.changed(attack={"restarts": 0, "search_every": 0})


def convolutional(generator: torch.Generator) -> nn.Module:
    """A small image network with a grafted layer, weights from the generator."""
    mask = torch.rand(14, generator=generator) < 0.3
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 14),
        GraftedActivation(nn.ReLU(), mask, 0.4),
        nn.Linear(14, 4),
    )
    with torch.no_grad():
        for layer in (model[0], model[3], model[5]):
            layer.weight.copy_(
                torch.randn(layer.weight.shape, generator=generator) * (2 / layer.weight[0].numel()) ** 0.5
            )
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator) / 5 - 0.1)
    return model


def classified(model: nn.Module, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 1, 5, 5, generator=generator)
    with torch.no_grad():
        return x, model(x).argmax(1)


def radii(model: nn.Module, x: Tensor) -> Tensor:
    """For each image a radius a little below or above that at which a linear model of this value and slope would change
    its class. At that radius itself rounding would decide on an image around which the model is linear."""
    x = x.clone().requires_grad_()
    best = model(x).topk(2).values
    margin = best[:, 0] - best[:, 1]
    (slope,) = torch.autograd.grad(margin.sum(), x)
    off_the_edge = torch.tensor([0.9, 1.1]).repeat(len(x))[: len(x)]
    return off_the_edge * margin.detach() / slope.abs().flatten(1).sum(1)


def bump(width: float, place: float = 0.31) -> nn.Module:
    """Class 0 everywhere but on [place - width, place + width], where three ReLUs make class 1 win."""
    model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.copy_(torch.tensor([width, 0.0, -width]) - place)
        model[2].weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [2.0, -4.0, 2.0]]) / width)
        model[2].bias.copy_(torch.tensor([1.0, 0.0]))
    return model


@pytest.mark.parametrize("width", [0.1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("settings", [FAST, BARE], ids=["attack", "no attack"])
def test_a_network_with_a_hidden_counterexample_is_never_verified(width: float, settings: VerifySettings) -> None:
    x = torch.tensor([[0.5], [0.9], [0.3 - 2 * width]])
    verdicts = verify(bump(width), x, torch.zeros(3, dtype=torch.int64), 0.7, settings=settings)
    assert all(v.status != "verified" for v in verdicts)
    assert any(v.status == "falsified" for v in verdicts)


def test_the_same_network_is_verified_where_the_bump_is_not() -> None:
    verdicts = verify(bump(1e-2), torch.tensor([[0.6], [0.05]]), torch.zeros(2, dtype=torch.int64), 0.2, settings=FAST)
    assert [v.status for v in verdicts] == ["verified", "verified"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_give_error(value: float, generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 3, generator)
    with torch.no_grad():
        model[3].weight[2, 5] = value
    for v in verify(model, x, y, 0.01, settings=FAST):
        assert v.status == "error"
        assert "NaN or infinity" in str(v.reason)


def test_an_image_that_is_not_finite_gives_error_and_takes_no_other_with_it(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 3, generator)
    x[1, 0, 2, 2] = math.nan
    assert [v.status for v in verify(model, x, y, 1e-4, settings=FAST)] == ["verified", "error", "verified"]


def test_numbers_that_overflow_in_the_bounds_are_never_a_proof(generator: torch.Generator) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 1e13)
    x = torch.rand(4, 2, generator=generator)
    verdicts = verify(model, x, model(x).argmax(1), 0.3, low=None, high=None, settings=FAST)
    assert all(v.status != "verified" or math.isfinite(v.margin or math.nan) for v in verdicts)


def test_a_point_is_decided_by_its_own_margin(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 4, generator)
    for v, logits, label in zip(verify(model, x, y, 0.0, settings=FAST), model(x).detach(), y, strict=True):
        assert v.status == "verified"
        others = torch.cat([logits[:label], logits[label + 1 :]])
        assert v.margin == pytest.approx(float(logits[label] - others.max()), abs=1e-6)
        assert v.subproblems == 0


def test_a_misclassified_image_is_its_own_counterexample(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 4, generator)
    for eps in (0.0, 0.1):
        for image, v in zip(x, verify(model, x, (y + 1) % 4, eps, settings=FAST), strict=True):
            assert (v.status, v.method, str(v)) == ("falsified", "misclassified", "falsified (misclassified)")
            assert v.counterexample is not None
            assert torch.equal(v.counterexample, image)
            assert v.margin is not None
            assert v.margin < 0


@pytest.mark.parametrize(
    "settings", [FAST, BARE.changed(branch={"batch": 4}, images=3)], ids=["default", "small groups"]
)
def test_a_batch_gives_the_verdicts_of_its_images_one_by_one(
    settings: VerifySettings, generator: torch.Generator
) -> None:
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    eps = radii(model, x)
    together = verify(model, x, y, eps, settings=settings)
    alone = [verify(model, x[i : i + 1], y[i : i + 1], float(eps[i]), settings=settings)[0] for i in range(14)]
    assert [v.status for v in together] == [v.status for v in alone]
    assert {v.status for v in together} == {"verified", "falsified"}
    assert any(v.method == "bab" for v in together)


def test_counterexamples_lie_in_the_box_and_in_the_valid_range_and_are_misclassified(
    generator: torch.Generator,
) -> None:
    model = convolutional(generator)
    x = torch.rand(10, 1, 5, 5, generator=generator) * 0.7 + 0.1
    y = model(x).argmax(1)
    found = 0
    for settings in (FAST, BARE):
        for i, v in enumerate(verify(model, x, y, 0.3, low=0.1, high=0.8, settings=settings)):
            if v.status == "falsified":
                found += 1
                point = v.counterexample
                assert point is not None
                exact, centre = point.double(), x[i].double()
                assert bool(((exact >= 0.1) & (exact <= 0.8)).all())
                assert float((exact - centre).abs().max()) <= 0.3
                assert int(model(point[None]).argmax()) != int(y[i])
    assert found > 0


def test_a_larger_radius_never_turns_falsified_into_verified(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 8, generator)
    order = {"verified": 0, "falsified": 1}
    levels = [[order[v.status] for v in verify(model, x, y, eps, settings=FAST)] for eps in (0.02, 0.05, 0.1)]
    assert all(a <= b <= c for a, b, c in zip(*levels, strict=True))


def test_verdicts_come_as_images_end_and_each_once(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    rounds: list[int] = []
    seen: list[int] = []
    cheap_before_branching = False
    for image, verdict in verify_stream(
        model, x, y, radii(model, x), settings=BARE.changed(images=4), watch=rounds.append
    ):
        seen.append(image)
        cheap_before_branching |= verdict.method == "crown" and not rounds
    assert sorted(seen) == list(range(14))
    assert cheap_before_branching
    assert rounds


def test_every_verdict_says_how_long_after_the_call_it_came() -> None:
    generator = torch.Generator().manual_seed(4)
    model = convolutional(generator)
    x, y = classified(model, 6, generator)
    began = time.perf_counter()
    found = [
        (verdict.ended, time.perf_counter() - began) for _, verdict in verify_stream(model, x, y, 0.05, settings=FAST)
    ]
    assert len(found) == 6
    assert all(ended is not None and 0 < ended <= now for ended, now in found)


def test_time_runs_out_as_timeout_and_not_as_proof(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    hard = [i for i, v in enumerate(verify(model, x, y, radii(model, x), settings=BARE)) if v.method == "bab"]
    assert hard
    late = verify(model, x, y, radii(model, x), timeout=1e-9, settings=BARE)
    assert all((late[i].status, late[i].reason) == ("unknown", "timeout") for i in hard)
    never = verify(model, x, y, radii(model, x), settings=BARE.changed(limits={"total_seconds": 1e-9}))
    assert all((v.status, v.reason) == ("unknown", "timeout") for v in never)


@pytest.mark.parametrize("after", [1, 8, 20])
def test_time_that_is_over_ends_the_bounds_of_a_group_too(
    after: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """after: how often the run is still in time when it is asked; then nothing is optimised any more."""
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    eps, settings = radii(model, x), BARE.changed(limits={"total_seconds": 1e9}, branch={"batch": 2})
    whole = verify(model, x, y, eps, settings=settings)
    asked, lengths = 0, []

    def limit(job: Job, images: list[int], share: float = 1.0) -> Callable[[], bool]:
        def late() -> bool:
            nonlocal asked
            asked += 1
            return asked > after

        return late

    def counted(function: LowerBound, alpha: Tensor, beta: Tensor, steps: AlphaSettings, **limits: object) -> Optimised:
        begun = asked > after
        found = optimise(function, alpha, beta, steps, **limits)  # type: ignore[arg-type]
        lengths.append(begun)
        return found

    monkeypatch.setattr(Job, "limit", limit)
    monkeypatch.setattr(Job, "late", lambda job: asked > after)
    for part in ("bounds.refine", "verification.stages"):
        monkeypatch.setattr(import_module(f"lipgraft.{part}"), "optimise", counted)
    found = verify(model, x, y, eps, settings=settings)
    assert not any(lengths)  # nothing is begun when the time is over
    for early, full in zip(found, whole, strict=True):
        assert early.status == full.status or (early.status, early.reason) == ("unknown", "timeout")
    assert any(verdict.reason == "timeout" for verdict in found)


def test_standard_accuracy_is_counted_even_when_time_is_over_at_once(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    y[::2] = (y[::2] + 1) % 4
    late = verify(model, x, y, radii(model, x), settings=BARE.changed(limits={"total_seconds": 1e-9}, images=4))
    assert [v.method == "misclassified" for v in late] == [True, False] * 7
    assert measure(late).sa == 0.5
    assert (measure(late).ra, measure(late).attacked) == (None, 0)  # nobody attacked them


def test_robust_accuracy_speaks_of_the_images_that_the_attack_came_to(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is cut off after two groups has the robust accuracy of these groups, whatever the others are."""
    model = convolutional(generator)
    x, y = classified(model, 30, generator)
    y[1::7] = (y[1::7] + 1) % 4
    eps = radii(model, x) * torch.where(torch.arange(30) % 2 == 0, 0.2, 4.0)  # far from where rounding would decide
    settings = BARE.changed(attack={"restarts": 2, "steps": 20}, images=6)
    # Groups are of six correct images: the first two end with image 13, and images 1 and 8 are misclassified.
    first = measure(verify(model, x[:14], y[:14], eps[:14], settings=settings))
    groups = 0

    def attacked(job: Job, images: list[int]) -> tuple[Outcome[int], bool]:
        nonlocal groups
        out = _attacked(job, images)
        groups += 1
        return out

    monkeypatch.setattr(api, "_attacked", attacked)
    monkeypatch.setattr(Job, "late", lambda job: groups >= 2)
    verdicts = verify(model, x, y, eps, settings=settings)
    cut = measure(verdicts)
    assert all(v.status == "unknown" or v.method == "misclassified" for v in verdicts[14:])
    assert (cut.count, cut.classified, cut.attacked) == (30, 30, 14)
    assert first.attacked == 14
    assert first.ra is not None
    assert 0 < first.ra < first.sa
    assert cut.ra == first.ra
    assert cut.reasons == {"timeout": cut.unknown}


def test_what_crown_proves_is_attacked_no_further_and_counts_as_attacked(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = convolutional(generator)
    x, y = classified(model, 40, generator)
    y[1::9] = (y[1::9] + 1) % 4
    images: list[int] = []

    def noted(job: Job, some: list[int]) -> Outcome[int]:
        images.extend(some)
        return attack(job, some)

    monkeypatch.setattr(api, "attack", noted)
    eps = radii(model, x) * torch.tensor([0.2, 0.8, 0.9, 1.0]).repeat(10)
    verdicts = verify(model, x, y, eps, settings=FAST.changed(images=7))
    proved = {image for image, v in enumerate(verdicts) if v.status == "verified" and v.method == "crown"}
    later = {image for image, v in enumerate(verdicts) if v.method in ("alpha-crown", "bab")}
    assert proved
    assert later
    assert not proved & set(images)
    assert later <= set(images)
    assert len(images) == len(set(images))
    assert all(v.attacked for v in verdicts)
    unbroken = [v.method not in ("misclassified", "pgd") for v in verdicts]
    assert measure(verdicts).ra == sum(unbroken) / len(x)


def test_an_image_that_was_never_classified_counts_for_nothing_but_against_va() -> None:
    m = measure([Verdict("unknown", "memory"), Verdict("verified", method="crown", correct=True, attacked=True)])
    assert (m.sa, m.classified, m.ra, m.attacked, m.va, m.count) == (1.0, 1, 1.0, 1, 0.5, 2)


def test_subproblems_run_out_at_the_same_place_in_every_run(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 30, generator)
    weak = BARE.changed(optimise={"iterations": 0, "refine_iterations": 0}, branch={"iterations": 0, "batch": 8})
    eps = radii(model, x)
    free = verify(model, x, y, eps, settings=weak.changed(limits={"max_subproblems": 64}))
    few = weak.changed(limits={"max_subproblems": 4})
    first, again = (verify(model, x, y, eps, settings=few) for _ in range(2))
    assert [(v.status, v.subproblems) for v in first] == [(v.status, v.subproblems) for v in again]
    ended = [(v, w) for v, w in zip(first, free, strict=True) if v.reason == "subproblems"]
    assert ended
    assert all(v.status == "unknown" and v.subproblems >= 4 and w.subproblems > 4 for v, w in ended)
    for v, w in zip(first, free, strict=True):
        assert "subproblems" in (v.reason, w.reason) or v.status == w.status
    none = verify(model, x, y, eps, settings=weak.changed(limits={"max_subproblems": 0}))
    assert all(v.subproblems == 0 for v in none)


def test_a_pool_without_room_gives_memory_and_not_a_proof(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    full = verify(
        model,
        x,
        y,
        radii(model, x),
        settings=BARE.changed(optimise={"iterations": 0}, branch={"iterations": 0, "leaf_iterations": 0}),
    )
    tight = verify(
        model,
        x,
        y,
        radii(model, x),
        settings=BARE.changed(
            limits={"pool_gigabytes": 1e-6}, optimise={"iterations": 0}, branch={"iterations": 0, "leaf_iterations": 0}
        ),
    )
    assert any(v.reason == "memory" for v in tight)
    for before, after in zip(full, tight, strict=True):
        assert after.status in (before.status, "unknown")


def test_a_model_that_fails_on_one_image_gives_error_for_that_image_alone(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    model = convolutional(generator)
    x, y = classified(model, 5, generator)
    x[3, 0, 0, 0] = 0.4321

    def fragile(module: nn.Module, images: Tensor) -> Tensor:
        if bool((images[..., 0, 0] == x[3, 0, 0, 0]).any()):
            raise RuntimeError("this image breaks the model")
        return call(module, images)

    for place in ("lipgraft.verification.job", "lipgraft.attacks.search"):
        monkeypatch.setattr(import_module(place), "call", fragile)
    verdicts = verify(model, x, y, 1e-4, settings=FAST)
    assert [v.status for v in verdicts] == ["verified"] * 3 + ["error", "verified"]
    assert verdicts[3].reason == "this image breaks the model"


def test_leaves_without_an_exact_solver_are_a_gap_and_not_a_proof(generator: torch.Generator) -> None:
    weak = BARE.changed(optimise={"iterations": 0}, branch={"iterations": 0, "leaf_iterations": 0, "lp_size": 0})
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    full, weaker = (
        verify(model, x, y, radii(model, x), settings=BARE),
        verify(model, x, y, radii(model, x), settings=weak),
    )
    assert any(v.reason == "gap" for v in weaker)
    assert all(b.status in (a.status, "unknown") for a, b in zip(full, weaker, strict=True))


def test_a_smooth_network_is_refuted_by_the_corner_of_its_bound_and_a_constant_one_is_a_gap(
    generator: torch.Generator,
) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
        x = torch.rand(6, 4, generator=generator)
        y = model(x).argmax(1)
        found = verify(model, x, y, 0.8, settings=BARE)
        assert ("falsified", "alpha-crown") in [(v.status, v.method) for v in found]
        for weight in model.parameters():
            weight.zero_()
        assert {(v.status, v.reason) for v in verify(model, x, y, 0.1, settings=BARE)} == {("unknown", "gap")}


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh])
def test_curved_activations_are_proved_or_left_as_a_gap(
    activation: type[nn.Module], generator: torch.Generator
) -> None:
    model = nn.Sequential(nn.Linear(3, 6), activation(), nn.Linear(6, 5), activation(), nn.Linear(5, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = torch.rand(12, 3, generator=generator)
    verdicts = verify(model, x, model(x).argmax(1), torch.linspace(0.001, 0.4, 12), settings=FAST)
    assert verdicts[0].status == "verified"
    assert {v.status for v in verdicts} <= {"verified", "falsified", "unknown"}
    assert all(v.reason == "gap" for v in verdicts if v.status == "unknown")


def test_a_wholly_grafted_network_is_affine_and_needs_no_branching(generator: torch.Generator) -> None:
    all_lines = GraftedActivation(nn.Tanh(), torch.ones(6, dtype=torch.bool), 0.3, 0.1)
    model = nn.Sequential(nn.Linear(3, 6), all_lines, nn.Linear(6, 3))
    with torch.no_grad():
        model[2].weight.copy_(torch.randn(3, 6, generator=generator) * 3)
    x = torch.rand(20, 3, generator=generator)
    verdicts = verify(model, x, model(x).argmax(1), torch.linspace(0.01, 3.0, 20), low=None, high=None, settings=BARE)
    assert {v.status for v in verdicts} == {"verified", "falsified"}
    assert all(v.subproblems == 0 and v.unstable == 0 for v in verdicts)


@pytest.mark.parametrize("speaks_of", ["real", "float32"])
def test_sound_arithmetic_gives_the_verdicts_of_fast_arithmetic_on_ordinary_networks(
    speaks_of: str, generator: torch.Generator
) -> None:
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    fast = verify(model, x, y, radii(model, x), settings=FAST.changed(arithmetic="fast"))
    sound = verify(model, x, y, radii(model, x), settings=FAST.changed(arithmetic="sound", speaks_of=speaks_of))
    assert [v.status for v in fast] == [v.status for v in sound]
    assert {v.method for v in sound} >= {"crown", "bab"}
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("arithmetic", ["sound", "fast"])
def test_a_search_that_boasts_proves_nothing_in_sound_arithmetic(
    arithmetic: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every bound that the search finds is made too high; fast arithmetic takes its word, sound arithmetic does not."""

    def boasting(*args: Any, **kwargs: Any) -> Optimised:
        found = optimise(*args, **kwargs)
        return replace(found, bound=found.bound + 100.0)

    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    settings = FAST.changed(arithmetic=arithmetic, attack={"restarts": 0, "search_every": 0})
    honest = verify(model, x, y, radii(model, x), settings=settings)
    for name in ("stages", "branch_and_bound.branching"):
        monkeypatch.setattr(import_module(f"lipgraft.verification.{name}"), "optimise", boasting)
    boasted = verify(model, x, y, radii(model, x), settings=settings)
    assert {v.status for v in honest} == {"verified", "falsified"}
    assert any(v.method == "bab" for v in honest)
    assert any(v.method == "bab" for v in boasted) == (arithmetic == "sound")
    if arithmetic == "sound":
        assert [v.status for v in boasted] == [v.status for v in honest]


def test_nothing_is_proved_about_float32_where_some_order_of_summation_overflows() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.4e38, 3.4e38], [3e38, 3e38]]))
        model.bias.copy_(torch.tensor([1e37, 0.0]))
        assert not model(torch.ones(1, 2)).isfinite().any()
    x, y = torch.full((1, 2), 0.3), torch.tensor([0])
    [real] = verify(model, x, y, 0.8, settings=BARE)
    [hardware] = verify(model, x, y, 0.8, settings=BARE.changed(speaks_of="float32"))
    assert real.status == "verified"
    assert hardware.status != "verified"


def test_a_verdict_says_what_its_proof_speaks_of(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 2, generator)
    for settings, spoken in (
        (FAST, "real"),
        (FAST.changed(speaks_of="float32"), "float32"),
        (FAST.changed(arithmetic="fast"), None),
    ):
        for verdict in verify(model, x, y, 1e-4, settings=settings):
            assert (verdict.status, verdict.speaks_of) == ("verified", spoken)


def test_the_model_is_left_as_it_was(generator: torch.Generator) -> None:
    model = convolutional(generator).train()
    x, y = classified(model, 3, generator)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    verify(model, x, y, 0.05, settings=FAST)
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_model_in_training_mode_is_searched_in_evaluation_mode(generator: torch.Generator) -> None:
    """Also by the short attacks of branch and bound."""
    model = nn.Sequential(nn.Linear(4, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = torch.rand(12, 4, generator=generator)
    y = model.eval()(x).argmax(1)
    model.train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    weak = FAST.changed(
        attack={"restarts": 0, "search_every": 1},
        optimise={"iterations": 0, "refine": "none"},
        branch={"iterations": 0},
    )
    verdicts = [verify(model, x, y, eps, settings=weak) for eps in (0.05, 0.1)]
    assert sum(v.subproblems for some in verdicts for v in some) > 0
    assert all(v.status in ("verified", "falsified") for some in verdicts for v in some)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_a_tie_is_neither_proved_nor_refuted_whatever_the_order_of_the_classes(label: int, eps: float) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[2].weight[1] = model[2].weight[0]
        model[2].bias[1] = model[2].bias[0]
    for settings in (FAST, BARE):
        [verdict] = verify(model, torch.full((1, 2), 0.5), torch.tensor([label]), eps, settings=settings)
        assert (verdict.status, verdict.reason) == ("unknown", "gap")


@pytest.mark.parametrize("label", [0, 1])
def test_a_tie_with_a_true_counterexample_beside_it_is_refuted(label: int) -> None:
    model = nn.Sequential(nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[0].bias.zero_()
    for settings in (FAST, BARE):
        [verdict] = verify(model, torch.zeros(1, 1), torch.tensor([label]), 0.1, low=None, high=None, settings=settings)
        assert verdict.status == "falsified"
        assert verdict.margin is not None
        assert verdict.margin < 0


def test_the_box_of_proofs_is_rounded_outward_and_counterexamples_lie_within_eps_exactly(
    generator: torch.Generator,
) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(3, 4, generator=generator))
    x = torch.rand(60, 4, generator=generator)
    y = model(x).argmax(1)
    box = Job.of(model, x, y, 0.3, None, None, BARE).box
    for end, pixel in zip(box.lower.flatten(), x.flatten(), strict=True):
        assert Fraction(float(end)) <= Fraction(float(pixel)) - Fraction(0.3)
    for end, pixel in zip(box.upper.flatten(), x.flatten(), strict=True):
        assert Fraction(float(end)) >= Fraction(float(pixel)) + Fraction(0.3)
    points = [
        (v.counterexample, image)
        for settings in (FAST, BARE)
        for v, image in zip(verify(model, x, y, 0.3, low=None, high=None, settings=settings), x, strict=True)
        if v.counterexample is not None
    ]
    assert points
    assert all(float((point.double() - image.double()).abs().max()) <= 0.3 for point, image in points)


def test_labels_that_are_not_whole_are_refused(generator: torch.Generator) -> None:
    with pytest.raises(SettingsError, match="whole number"):
        verify(convolutional(generator), torch.rand(1, 1, 5, 5), torch.tensor([0.9]), 0.1)


@pytest.mark.parametrize("settings", [FAST, BARE], ids=["attack", "no attack"])
def test_an_affine_classifier_is_decided(settings: VerifySettings, generator: torch.Generator) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(3, 4, generator=generator))
    x = torch.rand(10, 4, generator=generator)
    verdicts = verify(model, x, model(x).argmax(1), torch.linspace(0.01, 0.5, 10), settings=settings)
    assert {v.status for v in verdicts} == {"verified", "falsified"}


def test_inference_mode_changes_no_verdict(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    eps = radii(model, x)
    before = verify(model, x, y, eps, settings=FAST)
    with torch.inference_mode():
        inside = verify(model, x.clone(), y.clone(), eps.clone(), settings=FAST)
    assert [(v.status, v.reason) for v in inside] == [(v.status, v.reason) for v in before]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_leaves_are_solved_whatever_the_size_of_pre_activations(scale: float, generator: torch.Generator) -> None:
    """relu(s z) / s is relu(z): the same function, with numbers of another size on the way."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = torch.rand(25, 4, generator=generator)
    y, eps = model(x).argmax(1), radii(model, x)
    truth = verify(model, x[:5], y[:5], eps[:5], settings=FAST)
    with torch.no_grad():
        for p in (model[0].weight, model[0].bias, model[2].bias):
            p.mul_(scale)
        model[4].weight.div_(scale)
    by_programs = BARE.changed(
        optimise={"iterations": 0, "refine": "none"}, branch={"iterations": 0, "leaf_iterations": 0}
    )
    found = verify(model, x[:5], y[:5], eps[:5], settings=by_programs)
    assert [v.status for v in found] == [v.status for v in truth]


def test_no_images_give_no_verdicts(generator: torch.Generator) -> None:
    assert verify(convolutional(generator), torch.zeros(0, 1, 5, 5), torch.zeros(0, dtype=torch.int64), 0.1) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": torch.tensor([0, 9])}, "labels"),
        ({"y": torch.zeros(3)}, "labels"),
        ({"eps": -0.1}, "eps"),
        ({"eps": math.nan}, "eps"),
        ({"eps": torch.zeros(3)}, "eps"),
        ({"timeout": 0.0}, "timeout"),
        ({"settings": VerifySettings(branch=BranchSettings(rule="filtred"))}, "filtered"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    changes: dict[str, object], message: str, generator: torch.Generator
) -> None:
    arguments: dict[str, object] = {"y": torch.tensor([0, 1]), "eps": 0.1, **changes}
    with pytest.raises(SettingsError, match=message):
        verify(convolutional(generator), torch.rand(2, 1, 5, 5), **arguments)  # type: ignore[arg-type]


def test_measures_are_those_of_the_paper() -> None:
    verdicts = [
        Verdict("falsified", method="misclassified", seconds=9.0),
        Verdict("falsified", method="pgd", seconds=9.0),
        Verdict("verified", method="crown", seconds=1.0, unstable=0.1),
        Verdict("verified", method="bab", seconds=2.0, unstable=0.3),
        Verdict("falsified", method="bab", seconds=3.0, unstable=0.2),
        Verdict("unknown", "timeout", method="bab", seconds=6.0, unstable=0.2),
        Verdict("error", "broken"),
        Verdict("falsified", method="misclassified"),
    ]
    m = measure(verdicts)
    assert (m.sa, m.ra, m.va) == (5 / 8, 4 / 8, 2 / 8)
    assert m.unr == pytest.approx(0.2)
    assert m.time == pytest.approx(3.0)
    assert (m.reached, m.verified, m.falsified, m.unknown, m.error) == (4, 2, 4, 1, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_rounds_give_the_verdicts_of_plain_ones(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 40, generator)
    weak = BARE.changed(optimise={"iterations": 0}, branch={"iterations": 1})
    eps = radii(model, x)
    plain = verify(model, x, y, eps, settings=weak)
    model, x, y = model.cuda(), x.cuda(), y.cuda()
    for capture in (False, True):
        on_gpu = verify(model, x, y, eps, settings=weak.changed(branch={"capture": capture}))
        assert [v.status for v in on_gpu] == [v.status for v in plain]


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.1), nn.Sigmoid(), nn.Tanh()])
def test_pre_activations_whose_width_overflows_prove_nothing(activation: nn.Module) -> None:
    """2e38 - (-2e38) is infinite in float32: the chord's slope must not become 0."""
    first, last = nn.Linear(1, 1, bias=False), nn.Linear(1, 2)
    with torch.no_grad():
        first.weight.fill_(2e38)
        last.weight.copy_(torch.tensor([[0.0], [1.0]]))
        last.bias.copy_(torch.tensor([0.5, 0.0]))
    model = nn.Sequential(first, activation, last)
    x, y = torch.full((1, 1), -0.5), torch.zeros(1, dtype=torch.long)
    settings = VerifySettings(limits=Limits(timeout=1.0), attack=AttackSettings(restarts=0))
    (verdict,) = verify(model, x, y, 1.5, low=-1.0, high=1.0, settings=settings)
    assert verdict.status != "verified"
