"""The parts of the training loop: settings, schedules, optimiser groups, pruning, evaluation, benchmark."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lipgraft as lg
from lipgraft import models
from lipgraft.bench.certified_step import plain_certified_step
from lipgraft.bench.training import bench_train, plain_step, random_data
from lipgraft.errors import FileError, SettingsError
from lipgraft.grafting import apply
from lipgraft.settings import build, to_mapping
from lipgraft.training import OBJECTIVES, PRESETS, SCHEDULES, TrainSettings, accuracy, evaluate, preset, robust_accuracy
from lipgraft.training.checkpoint import Progress, StateWriter, read_state
from lipgraft.training.optimiser import OPTIMISERS, RAdam, Sgd, clipped, rectification
from lipgraft.training.parameters import weights_of
from lipgraft.training.prepare import draw_weights, permutation, prepare, seed_for
from lipgraft.training.pruning import apply_masks, keep_masks
from lipgraft.training.schedule import average_weights, factors, radius_shares
from lipgraft.training.settings import LATER

CPU = torch.device("cpu")


def grafted_digits() -> nn.Module:
    model = models.build("digits-cnn", "digits", seed=0)
    mask = torch.zeros(16, 8, 8, dtype=torch.bool)
    mask[::2] = True
    return apply(model, {"act1": mask}, input_shape=(1, 8, 8))


# Settings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.0}, "lr must be a finite number > 0"),
        ({"lr": -1.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"lr": math.inf}, "lr"),
        ({"graft_lr": 0.0}, "graft_lr"),
        ({"eps": 8.0}, "8/255, not 8"),
        ({"eps": math.nan}, "eps"),
        ({"eps": -0.1}, "eps"),
        ({"batch": 0}, "batch"),
        ({"epochs": -1}, "epochs"),
        ({"momentum": 1.0}, "momentum"),
        ({"prune_ratio": 1.0}, "prune_ratio"),
        ({"slope": -1e-3}, "slope"),
        ({"grad_align": math.nan}, "grad_align"),
        ({"attack_step_size": 0.0}, "attack_step_size"),
        ({"true_share": 0.0}, "true_share"),
    ],
)
def test_settings_out_of_range_are_refused_with_a_sentence(change: dict[str, float], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        TrainSettings(**change)  # type: ignore[arg-type]


def test_settings_survive_a_trip_through_a_mapping() -> None:
    for settings in PRESETS.values():
        assert build(TrainSettings, to_mapping(settings)) == settings


def test_presets_are_the_published_schedules_but_for_clipping() -> None:
    first, second = preset("pretrain"), preset("finetune")
    assert (first.epochs, first.lr, first.schedule, first.milestones) == (200, 0.1, "multistep", (100, 150))
    assert first.clip == second.clip == 4.0
    assert (second.epochs, second.lr, second.graft_lr, second.schedule) == (100, 1e-3, 0.01, "cosine")
    for settings in (first, second):
        assert (settings.batch, settings.momentum, settings.weight_decay, settings.grad_align) == (128, 0.9, 5e-4, 0.2)
        assert (settings.eps, settings.objective, settings.select) == (2 / 255, "fat", "best")
    with pytest.raises(SettingsError, match="Did you mean 'finetune'"):
        preset("fine-tune")


# Schedules


def test_schedules_have_their_values() -> None:
    base = TrainSettings(epochs=200)
    multistep = [factors(base, epoch, 2)[1] for epoch in (0, 99, 100, 149, 150, 199)]
    assert multistep == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    cosine = replace(base, epochs=100, schedule="cosine")
    values = [factors(cosine, epoch, 3) for epoch in range(100)]
    assert values[0] == [1.0] * 3
    assert values[25] == pytest.approx([(1 + math.cos(math.pi / 4)) / 2] * 3)  # the same all through an epoch
    assert values[99][0] == pytest.approx((1 + math.cos(0.99 * math.pi)) / 2)
    hurry = [f for e in range(10) for f in factors(replace(base, epochs=10, schedule="hurry"), e, 10)]
    assert max(hurry) == pytest.approx(1.0)
    assert hurry.index(max(hurry)) == 20
    assert hurry[:21] == sorted(hurry[:21])
    assert hurry[20:] == sorted(hurry[20:], reverse=True)
    assert 0 < hurry[-1] < 0.02
    assert factors(replace(base, schedule="constant"), 7, 2) == [1.0, 1.0]
    assert set(SCHEDULES) == {"constant", "multistep", "cosine", "hurry"}
    with pytest.raises(SettingsError, match="Did you mean 'cosine'"):
        factors(replace(base, schedule="cosin"), 0, 1)


def test_the_radius_grows_smoothly_from_almost_nothing_to_eps() -> None:
    settings = TrainSettings(ramp_from=1, ramp_epochs=80)
    shares = [share for epoch in range(90) for share in radius_shares(settings, epoch, 10)]
    assert shares == sorted(shares)
    assert shares[:11] == [1e-4] * 11  # the first epoch, and the first step of the next
    assert shares[810:] == [1.0] * 90
    assert shares[809] < 1
    quarter = 10 + 200  # from here on a straight line
    assert shares[quarter] == pytest.approx(1 / 13)  # of the published schedule: 4 (1 - 1/4) / (1/4) + 1 = 13
    assert shares[10 + 100] == pytest.approx(1 / 13 / 16)  # a power of four before
    rises = [b - a for a, b in zip(shares[quarter:809], shares[quarter + 1 : 810], strict=True)]
    assert max(rises) == pytest.approx(min(rises))
    assert shares[quarter] - shares[quarter - 1] == pytest.approx(rises[0], rel=0.02)
    assert radius_shares(TrainSettings(), 0, 3) == [1.0] * 3


def test_a_step_averages_the_weights_that_the_settings_name() -> None:
    data = random_data("digits", 40, 0)
    settings = TrainSettings(batch=8, average_from=1, average_every=3)
    model = models.build("digits-cnn", "digits", seed=0)
    step, seen = prepare(model, data, settings, CPU), []
    for epoch in range(4):
        blends = average_weights(settings, epoch, step.steps)
        step.begin_epoch(permutation(0, epoch, 40), [1.0] * step.steps, None, blends)
        for i in range(step.steps):
            step()
            if epoch >= 1 and ((epoch - 1) * step.steps + i) % 3 == 0:
                seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert len(seen) == 5
    for name, mean in step.average.items():
        torch.testing.assert_close(mean, torch.stack([weights[name] for weights in seen]).mean(0))


def test_weights_drawn_for_interval_bounds_have_their_spread_and_leave_the_last_layer() -> None:
    model, before = (models.build("conv-big", "cifar10", seed=0) for _ in range(2))
    draw_weights(model, torch.Generator().manual_seed(0))
    *drawn, last = weights_of(model).items()
    for name, weight in drawn:
        assert float(weight.detach().std()) == pytest.approx(math.sqrt(2 * math.pi) / weight[0].numel(), rel=0.1), name
    assert torch.equal(last[1], weights_of(before)[last[0]])


# Optimiser


def test_slopes_and_intercepts_are_a_group_of_their_own_without_weight_decay() -> None:
    settings = TrainSettings(lr=1e-3, graft_lr=0.01, weight_decay=5e-4)
    model = grafted_digits()
    others, grafts = Sgd(model, settings).groups
    assert sorted(name.rsplit(".", 1)[1] for name in grafts.parameters) == ["gamma", "omega"]
    assert (grafts.lr, grafts.weight_decay) == (0.01, 0.0)
    assert (others.lr, others.weight_decay) == (1e-3, 5e-4)
    assert len(others.parameters) + len(grafts.parameters) == len(list(model.parameters()))
    (only,) = Sgd(model, replace(settings, train_grafts=False)).groups
    assert only.parameters.keys() == others.parameters.keys()


@pytest.mark.parametrize("name", ["sgd", "sgd without momentum", "adam"])
def test_updates_are_those_of_torch(name: str) -> None:
    kind, momentum = name.split()[0], 0.0 if "without" in name else 0.9
    settings = TrainSettings(lr=0.1, graft_lr=0.03, momentum=momentum, weight_decay=0.01, optimiser=kind)
    ours, theirs = grafted_digits(), grafted_digits()
    optimiser = OPTIMISERS[kind](ours, settings)
    named = dict(theirs.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [named[n] for n in optimiser.groups[0].parameters], "lr": 0.1, "weight_decay": 0.01},
        {"params": [named[n] for n in optimiser.groups[1].parameters], "lr": 0.03, "weight_decay": 0.0},
    ]
    reference = torch.optim.SGD(groups, momentum=momentum) if kind == "sgd" else torch.optim.Adam(groups)
    generator = torch.Generator().manual_seed(0)
    for factor in (1.0, 0.5, 0.25):
        gradients = tuple(torch.randn(p.shape, generator=generator) for p in optimiser.parameters)
        for group, rate in zip(reference.param_groups, (0.1, 0.03), strict=True):
            group["lr"] = factor * rate
        for parameter, gradient in zip(
            [p for group in reference.param_groups for p in group["params"]], gradients, strict=True
        ):
            parameter.grad = gradient.clone()
        reference.step()
        optimiser.step(gradients, optimiser.rates([factor])[0], torch.zeros(()))
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, named[name])


def test_radam_is_torchs_but_for_the_steps_of_plain_momentum() -> None:
    """Gradients of zero in the first five steps, where torch takes those, make both the same."""
    model = nn.Linear(3, 2, bias=False)
    start = model.weight.detach().clone()
    theirs = nn.Parameter(start.clone())
    optimiser, reference = RAdam(model, TrainSettings(lr=0.1, weight_decay=0.0)), torch.optim.RAdam([theirs], lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(40):
        theirs.grad = torch.randn(2, 3, generator=generator) * (step >= 5)
        optimiser.step((theirs.grad,), optimiser.rates([1.0])[0], torch.zeros(()))
        reference.step()
    torch.testing.assert_close(model.weight.detach(), theirs.detach())
    assert not torch.equal(theirs.detach(), start)
    assert rectification(torch.tensor([5.0, 1e5])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_an_update_is_left_out_once_the_loss_is_not_finite(kind: str) -> None:
    model = models.build("digits-cnn", "digits", seed=0)
    optimiser = OPTIMISERS[kind](model, TrainSettings())
    before = [p.detach().clone() for p in optimiser.parameters]
    nan = tuple(torch.full_like(p, torch.nan) for p in optimiser.parameters)
    optimiser.step(nan, optimiser.rates([1.0])[0], torch.ones(()))
    assert all(torch.equal(p, b) for p, b in zip(optimiser.parameters, before, strict=True))
    assert all(not tensor.any() for tensor in optimiser.state.values())


def test_gradients_in_another_memory_layout_reach_the_right_weights() -> None:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    start = model.weight.detach().clone()
    gradient = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    optimiser = Sgd(model, TrainSettings(lr=1.0, weight_decay=0.0))
    optimiser.step((gradient, torch.zeros(3)), optimiser.rates([1.0])[0], torch.zeros(()))
    torch.testing.assert_close(model.weight, start - gradient)


@pytest.mark.parametrize("most", [0.5, 100.0])
def test_clipping_is_that_of_torch(most: float) -> None:
    model = nn.Linear(3, 2)
    gradients = tuple(torch.randn_like(p) for p in model.parameters())
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()
    nn.utils.clip_grad_norm_(model.parameters(), most)
    for parameter, ours in zip(model.parameters(), clipped(gradients, most), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-5, atol=1e-6)
    assert clipped(gradients, 0.0) is gradients


def test_a_model_without_parameters_to_train_is_refused() -> None:
    with pytest.raises(SettingsError, match="requires_grad"):
        Sgd(nn.Linear(2, 2).requires_grad_(False), TrainSettings())


# Pruning


def test_pruning_removes_the_smallest_weights_of_the_whole_network() -> None:
    model = grafted_digits()
    weights = weights_of(model)
    assert len(weights) == 4
    others = {n: p.detach().clone() for n, p in model.named_parameters() if n not in weights}
    everything = torch.cat([w.detach().abs().flatten() for w in weights.values()])
    masks = keep_masks(model, 0.3)
    apply_masks(model, masks)
    zeros = sum(int((w == 0).sum()) for w in weights.values())
    assert zeros == round(0.3 * len(everything))
    limit = everything.sort().values[zeros]
    assert all((w.detach()[masks[n] == 1].abs() >= limit).all() for n, w in weights.items())
    assert all(torch.equal(p, others[n]) for n, p in model.named_parameters() if n in others)


# The preparation of a step


def test_a_batch_larger_than_the_data_set_is_refused() -> None:
    data = random_data("digits", 10, 0)
    with pytest.raises(SettingsError, match="batch of 11 is larger than the 10 training images"):
        prepare(models.build("digits-cnn", "digits", seed=0), data, TrainSettings(batch=11), CPU)


def test_every_image_is_drawn_at_most_once_per_epoch_and_epochs_differ() -> None:
    data = random_data("digits", 33, 0)
    step = prepare(models.build("digits-cnn", "digits", seed=0), data, TrainSettings(batch=8), CPU)
    step.begin_epoch(permutation(0, 0, 33), [1.0] * step.steps)
    assert step.order.shape == (4, 8)
    assert len(set(step.order.flatten().tolist())) == 32
    assert permutation(0, 0, 33).tolist() != permutation(0, 1, 33).tolist()
    assert permutation(0, 0, 33).tolist() != permutation(1, 0, 33).tolist()
    assert len({seed_for(s, e, p) for s in range(3) for e in range(3) for p in ("order", "steps")}) == 18


def test_fused_and_plain_steps_give_the_same_weights() -> None:
    data = random_data("digits", 32, 0)
    results = []
    for fused in (True, False):
        model = models.build("digits-cnn", "digits", seed=0)
        settings = TrainSettings(batch=16, eps=0.1, fused=fused, slope=1e-4, l1=1e-4, prune="fixed")
        step = prepare(model, data, settings, CPU)
        assert step.fused == fused
        step.task.generator.manual_seed(0)
        step.begin_epoch(permutation(0, 0, 32), [1.0] * step.steps)
        step()
        step()
        results.append((model, step.means()))
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-4)
    for a, b in zip(results[0][0].parameters(), results[1][0].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


class Operations(TorchDispatchMode):
    """The names of all operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_a_step_never_waits_for_the_device_and_has_no_shape_that_depends_on_data(objective: str, fused: bool) -> None:
    """What a capture forbids: reading a number back, and operations whose output's shape is not known before."""
    settings = TrainSettings(
        batch=4,
        objective=objective,
        fused=fused,
        slope=1e-4,
        rs=1e-4,
        ibp_reg=0.5,
        l1=1e-4,
        prune="fixed",
        clean_share=0.1,
        attack_restarts=2,
        ramp_epochs=2,
        average_from=0,
        optimiser="sgd" if fused else "adam",
    )
    step = prepare(grafted_digits(), random_data("digits", 8, 0), settings, CPU)
    step.begin_epoch(permutation(0, 0, 8), [1.0] * step.steps)
    with Operations() as operations:
        step()
    assert f"_fused_{settings.optimiser}_" in operations.seen
    assert not operations.seen & {"_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "lift_fresh"}


def test_a_step_with_batchnorm_and_bounds_never_waits_for_the_device() -> None:
    settings = replace(preset("ctbench"), batch=4)
    model = models.build("cnn5", "digits", seed=0)
    step = prepare(model, random_data("digits", 8, 0), settings, CPU)
    step.begin_epoch(permutation(0, 0, 8), [1.0] * step.steps)
    with Operations() as operations:
        step()
    assert not operations.seen & {"_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "lift_fresh"}
    assert step.means()["loss"] > 0
    assert int(model.get_buffer("bn1.num_batches_tracked")) == 1


def test_objectives_with_bounds_refuse_what_they_cannot_bound() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(), nn.ReLU(), nn.Linear(8, 10))
    with pytest.raises(SettingsError, match="the objective ibp bounds the network, which must be without dropout"):
        prepare(model, random_data("digits", 8, 0), TrainSettings(batch=4, objective="ibp"), CPU)


# Evaluation


class Threshold(nn.Module):
    """Class 1 exactly when the first pixel is above 1/2; other pixels bend the logits so that starts matter."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        value = (x[:, :1] - 0.5) * (1 + torch.sin(40 * x[:, 1:2])) + 0.02
        return torch.cat([torch.zeros_like(value), value], 1)


def test_accuracy_takes_bytes_and_floats_and_leaves_the_mode() -> None:
    model = models.build("digits-cnn", "digits", seed=0).train()
    data = random_data("digits", 20, 0)
    x = data.x_train.permute(0, 3, 1, 2).float() / 255
    model.eval()
    expected = float((model(x).argmax(1) == data.y_train).float().mean())
    model.train()
    assert accuracy(model, data.x_train, data.y_train) == pytest.approx(expected)
    assert accuracy(model, x, data.y_train, batch=7) == pytest.approx(expected)
    assert model.training


def test_robust_accuracy_falls_with_restarts_and_counts_what_survives() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 2, generator=generator)
    y = Threshold()(x).argmax(1)
    y[:30] = 1 - y[:30]  # misclassified from the start
    result = robust_accuracy(Threshold(), x, y, 0.05, steps=3, restarts=20, report=(1, 5, 10, 100), batch=64)
    assert list(result.after) == [1, 5, 10, 20]
    values = [result.clean, *result.after.values()]
    assert values == sorted(values, reverse=True)
    assert values[1] > values[-1] > 0.1  # restarts do find more, and not everything breaks
    assert result.clean == pytest.approx(0.9)
    assert result.value == float(result.survivors.float().mean())
    assert not result.survivors[:30].any()
    again = robust_accuracy(Threshold(), x, y, 0.05, steps=3, restarts=5, batch=64)
    assert again.after[1] == result.after[1]


def test_robust_accuracy_tells_how_many_images_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "AT_ONCE", 70)  # several parts in every stage of restarts
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    y = Threshold()(x).argmax(1)
    told: list[tuple[int, int]] = []
    robust_accuracy(
        Threshold(), x, y, 0.05, steps=3, restarts=12, batch=40, progress=lambda done, count: told.append((done, count))
    )
    done = [images for images, _ in told]
    assert done == sorted(done)
    assert done[0] < 20  # of the first of twelve restarts
    assert told[-1] == (200, 200)
    assert len(set(done)) > 20


def test_robust_accuracy_without_eps_is_accuracy() -> None:
    x = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 2, (50,), generator=torch.Generator().manual_seed(1))
    result = robust_accuracy(Threshold(), x, y, 0.0, restarts=2)
    assert result.value == result.clean == pytest.approx(accuracy(Threshold(), x, y))
    with pytest.raises(SettingsError, match="at least one image"):
        robust_accuracy(Threshold(), x[:0], y[:0], 0.1)


# Benchmark


@pytest.mark.parametrize("name", ["pretrain", "ctbench"])
def test_the_benchmark_measures_both_steps_on_a_cpu(name: str) -> None:
    result = bench_train("digits-cnn", 4, "cpu", preset_name=name, dataset="digits", steps=2, repeats=1)
    assert result["eager_ms"] > 0
    assert result["speedup"] == pytest.approx(result["eager_ms"] / result["fast_ms"])
    assert result["fast_peak_bytes"] is None


def test_the_plain_step_of_the_benchmark_learns_like_ours() -> None:
    """Both are the same method: after the same number of steps on the same images their losses are close."""
    settings, data = TrainSettings(batch=32, eps=0.05, lr=100.0), random_data("digits", 32, 0)  # plain_step: lr / 1000
    losses = []
    for plain in (True, False):
        model = models.build("digits-cnn", "digits", seed=0)
        if plain:
            take = plain_step(model, data, settings, CPU)
            for _ in range(20):
                take()
        else:
            step = prepare(model, data, settings, CPU)
            for i in range(20):
                step.begin_epoch(permutation(0, i, 32), [1e-3] * step.steps)
                step()
        x = data.x_train.permute(0, 3, 1, 2).float() / 255
        losses.append(float(nn.functional.cross_entropy(model(x), data.y_train).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert losses[0] < 2.3


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["ibp", "mtl-ibp", "ctbench", "sabr"])
def test_the_plain_certified_step_of_the_benchmark_learns_like_ours(name: str) -> None:
    chosen = replace(preset(name), batch=32, eps=0.05, lr=2e-3, l1=1e-4, init="given")
    settings, data, share = chosen, random_data("digits", 32, 0), 0.7
    losses = []
    for plain in (True, False):
        model = models.build("digits-cnn", "digits", seed=0)
        step = prepare(model, data, settings, CPU)
        if plain:
            take = plain_certified_step(model, data, replace(settings, lr=2.0), CPU, share)  # its lr / 1000
            for _ in range(20):
                take()
        else:
            for i in range(20):
                step.begin_epoch(permutation(0, i, 32), [1.0] * step.steps, [share] * step.steps)
                step()
        step.begin_epoch(permutation(0, 0, 32), [0.0] * step.steps, [share] * step.steps)
        step()
        losses.append(step.means()["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


# States


def test_a_state_holds_the_tensors_of_its_moment_although_it_is_written_later(tmp_path: Path) -> None:
    step = prepare(grafted_digits(), random_data("digits", 8, 0), TrainSettings(batch=8), CPU)
    best = {name: tensor.clone() for name, tensor in step.task.model.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in best.items()}
    writer, path = StateWriter(), tmp_path / "state.safetensors"
    writer.write(path, step, best, Progress(epoch=3), {"seed": 1})
    with torch.no_grad():
        for tensor in (*best.values(), *step.task.model.parameters()):
            if tensor.is_floating_point():
                tensor.add_(1)
    writer.wait()
    assert read_state(path, step, best, {"seed": 1}).epoch == 3
    for name, tensor in step.task.model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert torch.equal(best[name], before[name])


def test_a_preset_may_be_given_by_its_name() -> None:
    with pytest.raises(SettingsError, match="Did you mean 'pretrain'"):
        lg.train(grafted_digits(), random_data("digits", 8, 0), "pretrian")
    with pytest.raises(SettingsError, match="holds out no images"):
        lg.train(grafted_digits(), random_data("digits", 8, 0), "pretrain")


def test_every_objective_and_regulariser_owns_its_settings() -> None:
    """A setting belongs to one class, declared beside the function that reads it; the names stay flat."""
    owners = {name: cls for cls in reversed(TrainSettings.__mro__) for name in vars(cls).get("__annotations__", {})}
    modules = {name: owner.__module__.removeprefix("lipgraft.training.") for name, owner in owners.items()}
    assert modules["trades_beta"] == "objectives.trades"
    assert modules["prior_reset"] == "objectives.fgsm_mep"
    assert modules["slope_k"] == "regularisers.slope"
    assert set(owners) == {field.name for field in fields(TrainSettings)}


def test_trainings_of_older_versions_are_known_by_the_settings_that_those_had() -> None:
    """The digest of the published pre-training from before certified training was there."""
    text = json.dumps(TrainSettings().record(), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "bf5f20954bd7e3fc"
    assert TrainSettings(crop=2).record()["crop"] == 2
    assert TrainSettings.__dataclass_fields__.keys() >= set(LATER)


def test_a_disk_that_refuses_a_state_is_heard_of(tmp_path: Path) -> None:
    step = prepare(grafted_digits(), random_data("digits", 8, 0), TrainSettings(batch=8), CPU)
    (tmp_path / "file").write_text("no folder")
    writer = StateWriter()
    writer.write(tmp_path / "file" / "state.safetensors", step, {}, Progress(), {})
    with pytest.raises(FileError, match="cannot be written"):
        writer.wait()
