"""CUDA graphs: how they are captured, and that work on a CPU does without them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from lipgraft import models
from lipgraft.cuda_graph import capture
from lipgraft.data import Dataset
from lipgraft.training import PRESETS, TrainSettings
from lipgraft.training.prepare import prepare
from lipgraft.training.step import Step, runner
from lipgraft.verification.branch_and_bound.branching import Children
from lipgraft.verification.branch_and_bound.capture import USES_BEFORE_CAPTURE, Replayed
from lipgraft.verification.branch_and_bound.subproblems import Subproblems

FAT = TrainSettings(objective="fat")
STEPS = {
    "fat": ("digits-cnn", FAT),
    **{name: ("digits-cnn", PRESETS[name]) for name in ("ibp", "mtl-ibp", "ctbench", "sabr")},
    "crown-ibp": ("digits-cnn", replace(PRESETS["ibp"], objective="crown-ibp")),
    "batchnorm": ("cnn5", PRESETS["ctbench"]),
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def subproblems(count: int) -> Subproblems:
    whole, real = torch.zeros(count, dtype=torch.int64), torch.zeros(count)
    return Subproblems(
        whole, whole, real, real[:, None], whole, whole[:, None], real[:, None], real[:, None], real[:, None]
    )


def training_step(
    device: torch.device, *, capture: bool, network: str = "digits-cnn", settings: TrainSettings = FAT
) -> Step:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (12, 8, 8, 1), generator=generator).to(torch.uint8)
    y = torch.randint(0, 10, (12,), generator=generator)
    classes = tuple(map(str, range(10)))
    data = Dataset("digits", x, y, x, y, (0.0,), (1.0,), classes, "none", 1)
    settings = replace(settings, batch=4, capture=capture)
    step = prepare(models.build(network, "digits", seed=0).to(device), data, settings, device)
    step.begin_epoch(torch.arange(12), [0.1] * step.steps)
    return step


def test_on_a_cpu_branch_and_bound_calls_its_step_plainly_however_often() -> None:
    calls: list[Subproblems] = []

    def function(parents: Subproblems) -> Children:
        calls.append(parents)
        return Children(parents, parents.bound > 0, parents.alpha, parents.bound, parents.bound > 0)

    replayed = Replayed(function, torch.device("cpu"), enabled=True)
    asked = [subproblems(2) for _ in range(USES_BEFORE_CAPTURE + 2)]
    assert all(replayed(parents).sub is parents for parents in asked)
    assert len(calls) == len(asked)
    assert not replayed.give_up()


@pytest.mark.parametrize("capture", [True, False])
def test_on_a_cpu_a_training_step_is_its_own_runner(capture: bool) -> None:
    step = training_step(torch.device("cpu"), capture=capture)
    assert runner(step) is step


@needs_gpu
def test_a_replay_computes_with_what_its_tensors_hold_by_then() -> None:
    x = torch.ones(3, device="cuda")
    runs: list[str] = []
    call = capture(lambda: 2 * x, x.device, warm_up=lambda: runs.append("warm-up"))
    assert runs == ["warm-up"]
    for value in (1.0, 5.0):
        x.fill_(value)
        assert call.replay().tolist() == [2 * value] * 3
    assert call.replay() is call.result


@needs_gpu
def test_graphs_that_share_memory_give_the_right_results_one_after_the_other() -> None:
    memory = torch.cuda.graph_pool_handle()
    x = torch.arange(1000.0, device="cuda")

    def line(k: int) -> torch.Tensor:
        return x * k + k

    calls = {k: capture(partial(line, k), x.device, warm_up=partial(line, k), memory=memory) for k in (2, 3)}
    for _ in range(2):
        for k, call in calls.items():
            assert torch.equal(call.replay(), line(k))


@needs_gpu
def test_every_replay_draws_new_random_numbers() -> None:
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(0)

    def draw() -> torch.Tensor:
        return torch.rand(8, device=device, generator=generator)

    call = capture(draw, device, warm_up=draw, generator=generator)
    assert not torch.equal(call.replay().clone(), call.replay())


@needs_gpu
@pytest.mark.parametrize("name", STEPS)
def test_a_captured_training_step_leaves_no_trace_of_its_warm_up_and_then_learns(name: str) -> None:
    network, settings = STEPS[name]
    step = training_step(torch.device("cuda"), capture=True, network=network, settings=settings)
    before = [tensor.clone() for tensor in step.tensors()]
    random = step.task.generator.get_state()
    benchmark = torch.backends.cudnn.benchmark
    run = runner(step)
    assert run is not step
    assert all(torch.equal(a, b) for a, b in zip(before, step.tensors(), strict=True))
    assert torch.equal(random, step.task.generator.get_state())
    assert torch.backends.cudnn.benchmark == benchmark
    run()
    assert not all(torch.equal(a, b) for a, b in zip(before, step.tensors(), strict=True))
