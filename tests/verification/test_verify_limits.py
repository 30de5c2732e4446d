"""Limits of time and memory hold in every stage, and what they end is never called proved."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

from lipgraft.bounds.memory import PRODUCTS, free_bytes
from lipgraft.verification import (
    AttackSettings,
    BranchSettings,
    Limits,
    OptimiseSettings,
    Verdict,
    VerifySettings,
    api,
    verify,
    verify_stream,
)
from lipgraft.verification.branch_and_bound.pool import Pool, pool_limits
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.stages import screen
from test_verify import classified, convolutional, radii

WEAK = VerifySettings(
    attack=AttackSettings(restarts=0, search_every=0),
    optimise=OptimiseSettings(iterations=0, refine="none"),
    branch=BranchSettings(iterations=0, leaf_iterations=0, batch=8),
)
GENEROUS = 6.0  # seconds that a limit of one second may take on a busy machine; without the limit each takes longer


def network(generator: torch.Generator, *, activation: type[nn.Module] = nn.ReLU, width: int = 12) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 3))
    with torch.no_grad():
        for p in model.parameters():
            scale = 1.5 / p.shape[1] ** 0.5 if p.ndim == 2 else 0.2
            p.copy_(torch.randn(p.shape, generator=generator) * scale)
    return model


def inputs(model: nn.Module, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 6, generator=generator)
    with torch.no_grad():
        return x, model(x).argmax(1)


class Robust(nn.Module):
    """Class 0 everywhere: nothing for an attack to find, and so much to try."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        with torch.no_grad():
            self.inner[2].bias.copy_(torch.tensor([100.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


@pytest.mark.sampled(2)
@pytest.mark.parametrize("limit", [{"timeout": 1.0}, {"total_seconds": 1.0}])
def test_the_attack_looks_at_the_clock(limit: dict[str, float]) -> None:
    settings = VerifySettings(Limits(**limit), AttackSettings(steps=200_000, restarts=1))
    began = time.perf_counter()
    [verdict] = verify(Robust(), torch.full((1, 6), 0.5), torch.tensor([0]), 0.1, settings=settings)
    assert time.perf_counter() - began < GENEROUS
    assert verdict.status == "verified" if "timeout" in limit else verdict.reason == "timeout"


def test_the_time_of_the_attack_is_charged_to_the_images_that_took_it(generator: torch.Generator) -> None:
    """One image is misclassified a hair away and the attack leaves it at once; the other is attacked to the end."""
    model = nn.Sequential(nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [0.0]]))
        model[0].bias.copy_(torch.tensor([-0.2, 0.0]))
    settings = VerifySettings(attack=AttackSettings(steps=500, restarts=1))
    x = torch.tensor([[0.21], [0.9]])
    broken, sturdy = verify(model, x, torch.zeros(2, dtype=torch.int64), 0.1, settings=settings)
    assert (broken.status, sturdy.status) == ("falsified", "verified")
    long = verify(
        model, x[1:], torch.zeros(1, dtype=torch.int64), 0.1, settings=settings.changed(attack={"restarts": 0})
    )
    assert long[0].status == "verified"
    assert broken.seconds < 0.2


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("activation", "eps", "iterations"),
    [
        pytest.param(nn.Sigmoid, 3.0, 10**6, id="margins of a smooth network"),
        pytest.param(nn.ReLU, 0.2, 10**6, id="margins"),
        pytest.param(nn.ReLU, 0.2, 1, id="hidden neurons"),
    ],
)
@pytest.mark.long
def test_optimised_lines_look_at_the_clock(
    activation: type[nn.Module], eps: float, iterations: int, generator: torch.Generator
) -> None:
    model = network(generator, activation=activation)
    x, y = inputs(model, 8, generator)
    settings = VerifySettings(
        limits=Limits(total_seconds=1.0),
        attack=AttackSettings(restarts=0, search_every=0),
        optimise=OptimiseSettings(iterations=iterations, refine_iterations=10**6),
    )
    began = time.perf_counter()
    verdicts = verify(model, x, y, eps, low=None, high=None, settings=settings)
    assert time.perf_counter() - began < GENEROUS
    assert any(v.reason == "timeout" for v in verdicts)


@pytest.mark.long
def test_the_programs_of_leaves_look_at_the_clock_and_are_charged(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve, allowed = scipy.optimize.linprog, []

    def slowly(*arguments: Any, **options: Any) -> Any:
        allowed.append(options.get("options", {}).get("time_limit", float("inf")))
        time.sleep(0.3)
        return solve(*arguments, **options)

    monkeypatch.setattr(scipy.optimize, "linprog", slowly)
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    began = time.perf_counter()
    verdicts = verify(model, x, y, radii(model, x), settings=WEAK.changed(limits={"total_seconds": 1.0}))
    assert time.perf_counter() - began < GENEROUS
    assert allowed
    assert max(allowed) <= 1.0
    assert any(v.reason == "timeout" for v in verdicts)
    assert sum(v.seconds for v in verdicts) >= 0.3 * (len(allowed) - 1)


def test_what_crown_proves_comes_before_lines_are_optimised(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = import_module("lipgraft.verification.stages")
    optimise, begun = stage.optimise, []

    def noted(*arguments: Any, **options: Any) -> Any:
        begun.append(True)
        return optimise(*arguments, **options)

    monkeypatch.setattr(stage, "optimise", noted)
    model = network(generator)
    x, y = inputs(model, 8, generator)
    eps = torch.tensor([1e-4, 0.15] * 4)
    settings = VerifySettings(
        attack=AttackSettings(restarts=0, search_every=0), optimise=OptimiseSettings(refine="none")
    )
    for _, verdict in verify_stream(model, x, y, eps, settings=settings):
        if verdict.method == "crown":
            assert not begun
    assert begun


@pytest.mark.long
def test_the_run_counts_from_its_call_tracing_included(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = import_module("lipgraft.verification.job")
    trace = job.trace

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return trace(*arguments, **options)

    monkeypatch.setattr(job, "trace", slowly)
    model = network(generator)
    x, y = inputs(model, 2, generator)
    assert Job.of(model, x, y, 0.1, 0.0, 1.0, VerifySettings(), time.perf_counter()).ledger.now() >= 0.3
    verdicts = verify(
        model, x, y, 1e-4, settings=VerifySettings(limits=Limits(total_seconds=0.2), attack=AttackSettings(restarts=0))
    )
    assert all(v.reason == "timeout" for v in verdicts)


# --- memory


def told(verdicts: list[Verdict]) -> list[tuple[str, str | None]]:
    return [(v.status, v.reason) for v in verdicts]


@pytest.mark.long
def test_a_pool_that_spills_gives_the_verdicts_of_one_that_has_room(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    store = Pool._store

    def noted(pool: Pool, packed: Subproblems) -> None:
        moved.append(len(packed))
        store(pool, packed)

    monkeypatch.setattr(Pool, "_store", noted)
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    eps = 1.05 * radii(model, x)
    roomy = verify(model, x, y, eps, settings=WEAK)
    assert not moved
    assert sum(v.subproblems for v in roomy) > 50
    assert {v.status for v in roomy} >= {"verified", "falsified"}
    for pool_gigabytes in (1e-9, 1e-6):
        moved.clear()
        tight = WEAK.changed(limits={"pool_gigabytes": pool_gigabytes, "spill_gigabytes": 1.0})
        assert told(verify(model, x, y, eps, settings=tight)) == told(roomy)
        assert sum(moved) > 5


def test_an_image_ends_for_memory_only_when_device_and_host_are_used_up(generator: torch.Generator) -> None:
    model = convolutional(generator)
    x, y = classified(model, 14, generator)
    eps = 1.05 * radii(model, x)
    roomy = verify(model, x, y, eps, settings=WEAK)
    both = verify(model, x, y, eps, settings=WEAK.changed(limits={"pool_gigabytes": 1e-6, "spill_gigabytes": 2e-7}))
    assert any(v.reason == "memory" for v in both)
    for before, after in zip(roomy, both, strict=True):
        assert (after.status, after.reason) in (("unknown", "memory"), (before.status, before.reason))


def test_spilled_subproblems_are_open_until_they_come_back() -> None:
    def some(images: list[int], bounds: list[float]) -> Subproblems:
        image = torch.tensor(images)
        wide = torch.zeros(len(images), 2)
        return Subproblems(image, image * 0, torch.tensor(bounds), wide, image * 0, wide.long(), wide, wide, wide)

    first = some([0, 0, 0, 1], [-3.0, -1.0, -2.0, -0.5])
    pool = Pool(first, 9, limit=4 * first.packed().row_bytes(), spill_limit=10**6)
    assert pool.capacity() == 4
    pool.push(some([0, 2], [-4.0, -0.1]))
    assert len(pool) <= 4
    assert pool.counts(3).tolist() == [4, 1, 1]
    assert pool.spilled.keys() == {0}  # the image with most gives its best bounds away; no other is kept waiting
    assert pool.worst(0) == -4.0
    seen: list[tuple[int, float]] = []
    while int(pool.counts(3).sum()):
        pool.refill()
        out = pool.take(pool.select(1))
        seen += list(zip(out.image.tolist(), out.bound.tolist(), strict=True))
    expected = [(0, -4.0), (0, -3.0), (0, -2.0), (0, -1.0), (1, -0.5), (2, pytest.approx(-0.1))]
    assert sorted(seen) == sorted(expected)
    pool.push(some([0, 0, 1, 1, 2], [-1.0] * 5))
    pool.drop(0)
    pool.drop(1)
    assert pool.counts(3).tolist() == [0, 0, 1]


def test_the_default_pool_is_a_share_of_what_is_free() -> None:
    cpu = torch.device("cpu")
    free = free_bytes(cpu)
    pool, spill = pool_limits(cpu, Limits())
    assert 0.2 * free < pool < 0.8 * free
    assert spill == 0  # the pool is in the host's memory already
    assert pool_limits(cpu, Limits(pool_gigabytes=2.0, spill_gigabytes=0.5)) == (2 * 2**30, 2**29)


def test_a_device_without_room_for_one_subproblem_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    bare = torch.zeros(0, 1)
    pool = Pool(Subproblems(none, none, none.float(), bare, none, bare.long(), bare, bare, bare), 9, spill_limit=10**6)
    one = torch.zeros(1, dtype=torch.int64)
    flat = torch.zeros(1, 1)

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(torch, "cat", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        pool.push(Subproblems(one, one, one.float(), flat, one, flat.long(), flat, flat, flat))


@pytest.mark.parametrize(("products", "images", "group"), [(2e9, 256, 90), (1.0, 256, 32), (2e9, 20, 20)])
def test_only_images_of_a_small_network_go_together_in_larger_groups(
    products: float, images: int, group: int, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    """products: that take well below a second. However small, never more images than the settings allow."""
    groups: list[int] = []

    def counted(job: Job, some: list[int]) -> Any:
        groups.append(len(some))
        return screen(job, some)

    monkeypatch.setattr(api, "screen", counted)
    monkeypatch.setitem(PRODUCTS, "cpu", products)
    model = network(generator)
    verify(
        model,
        *inputs(model, 90, generator),
        1e-6,
        settings=VerifySettings(images=images).changed(attack={"restarts": 0}),
    )
    assert groups[0] == group
    assert sum(groups) == 90
