"""The training loop: it learns, it resumes bit for bit after kill -9, it stops when it diverges."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from lipgraft import data, models
from lipgraft.bounds import bound
from lipgraft.box import Box
from lipgraft.data import Dataset, images
from lipgraft.errors import CheckpointError, NumericalError, SettingsError
from lipgraft.grafting import apply
from lipgraft.training import SCHEDULES, TrainSettings, accuracy, interval_accuracy, train
from lipgraft.training.parameters import weights_of
from lipgraft.training.prepare import prepare

QUICK = TrainSettings(epochs=3, batch=16, eps=0.03, lr=0.05, schedule="hurry", attack_steps=2)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.load("digits")


def some(dataset: Dataset, count: int) -> Dataset:
    """The first training images, a third of them held out."""
    return replace(dataset, x_train=dataset.x_train[:count], y_train=dataset.y_train[:count], val_size=count // 3)


def fresh() -> nn.Module:
    return models.build("digits-cnn", "digits", seed=0)


def grafted() -> nn.Module:
    mask = torch.rand(16, 8, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    return apply(fresh(), {"act1": mask}, input_shape=(1, 8, 8))


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same_weights(a: nn.Module, b: nn.Module) -> None:
    one, two = a.state_dict(), b.state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


# Learning

SMOKE: dict[str, dict[str, Any]] = {
    "standard": {"objective": "standard", "grad_align": 0.0},
    "fat": {"grad_align": 0.0},
    "fat, grad-align": {},
    "pgd": {"objective": "pgd", "grad_align": 0.0},
    "trades": {"objective": "trades", "grad_align": 0.0},
    "fgsm-mep": {"objective": "fgsm-mep", "grad_align": 0.0},
    "fgsm-pco": {"objective": "fgsm-pco", "grad_align": 0.0},
    "slope": {"slope": 5e-5, "grad_align": 0.0},
    "slope, symmetric": {"slope": 5e-5, "slope_form": "symmetric", "grad_align": 0.0},
    "rs": {"rs": 5e-5, "grad_align": 0.0},
    "l1, pruning": {"l1": 1e-5, "prune": "fixed", "grad_align": 0.0},
}


@pytest.mark.parametrize("name", SMOKE)
def test_digits_are_learnt_above_80_percent(name: str, digits: Dataset) -> None:
    result = train(fresh(), some(digits, 900), replace(QUICK, **SMOKE[name]), device="cpu")
    assert accuracy(result.model, digits.x_test, digits.y_test) > 0.8
    assert result.history[-1]["ra"] > 0.7
    assert result.history[-1]["loss"] < result.history[0]["loss"]


CERTIFIED = {
    "ibp": {},
    "mtl-ibp": {"ibp_share": 0.5, "attack_reach": 2.0},
    "sabr": {"small_box": 0.5},
}
WARM = replace(
    QUICK,
    epochs=4,
    batch=32,
    grad_align=0.0,
    init="ibp",
    ibp_reg=0.5,
    ramp_epochs=2,
    optimiser="adam",
    lr=1e-2,
    weight_decay=0.0,
    select="last",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CERTIFIED)
def test_interval_bounds_prove_digits_after_certified_training(name: str, digits: Dataset) -> None:
    result = train(fresh(), some(digits, 900), replace(WARM, objective=name, **CERTIFIED[name]), device="cpu")
    proved = interval_accuracy(result.model, digits.x_test, digits.y_test, WARM.eps)
    assert accuracy(result.model, digits.x_test, digits.y_test) > max(0.8, proved)
    assert proved > 0.5
    assert result.history[-1]["ibp"] > 0.5
    x, y = images(digits.x_test[:100]), digits.y_test[:100]
    rows = torch.eye(10)[y][:, None] - torch.eye(10)
    crown = bound(result.model, Box.linf(x, WARM.eps), "crown", rows[rows.any(2)].view(100, 9, 10)).lower
    assert float((crown > 0).all(1).float().mean()) >= interval_accuracy(result.model, x, y, WARM.eps)


@pytest.mark.long
def test_a_grafted_network_is_fine_tuned_with_bounds_and_slope_loss(digits: Dataset) -> None:
    part, settings = some(digits, 900), replace(WARM, objective="mtl-ibp", ibp_share=0.5, attack_reach=2.0)
    start = train(fresh(), part, settings, device="cpu").model
    mask = torch.rand(16, 8, 8, generator=torch.Generator().manual_seed(0)) < 0.3
    model = apply(start, {"act1": mask}, input_shape=(1, 8, 8))
    before = model.get_parameter("act1.gamma").detach().clone()
    grafted_share = interval_accuracy(model, digits.x_test, digits.y_test, settings.eps)
    calm = replace(settings, init="given", ibp_reg=0.0, ramp_epochs=0, lr=3e-3, slope=1e-5, epochs=2)
    result = train(model, part, calm, device="cpu")
    moved = model.get_parameter("act1.gamma") != before
    assert moved[mask].float().mean() > 0.5
    assert not moved[~mask].any()
    assert result.history[-1]["slope"] > 0
    assert interval_accuracy(model, digits.x_test, digits.y_test, settings.eps) > max(0.5, grafted_share)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_smooth_networks_learn_digits_from_their_initial_weights(activation: str, digits: Dataset) -> None:
    model = models.build("digits-cnn", "digits", activation=activation, seed=0)
    result = train(model, digits, replace(QUICK, epochs=8, batch=32, lr=0.1, grad_align=0.0), device="cpu")
    assert accuracy(result.model, digits.x_test, digits.y_test) > 0.8


def test_fine_tuning_moves_the_slopes_of_grafted_neurons_only(digits: Dataset) -> None:
    model = grafted()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    mask = next(b for n, b in model.named_buffers() if n.endswith("mask"))
    settings = replace(QUICK, epochs=1, schedule="cosine", lr=1e-3, select="last")
    train(model, some(digits, 300), settings, device="cpu")
    after = dict(model.named_parameters())
    for key in ("gamma", "omega"):
        name = next(n for n in after if n.endswith(key))
        moved = after[name] != before[name]
        assert moved[mask].float().mean() > 0.5
        assert not moved[~mask].any()
    still = grafted()
    train(still, some(digits, 300), replace(settings, train_grafts=False), device="cpu")
    gammas = {n: p for n, p in still.named_parameters() if n.endswith(("gamma", "omega"))}
    assert all(torch.equal(p, before[n]) for n, p in gammas.items())


def test_a_model_of_the_users_own_with_batchnorm_and_dropout_trains(digits: Dataset) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
    )
    result = train(model, digits, QUICK, device="cpu")
    assert accuracy(model, digits.x_test, digits.y_test) > 0.7
    assert result.model is model
    assert not model.training


# Pruning


def test_pruned_weights_stay_zero_through_training(digits: Dataset) -> None:
    start = {n: w.detach().clone() for n, w in weights_of(fresh()).items()}
    limit = torch.cat([w.abs().flatten() for w in start.values()]).sort().values
    limit = limit[round(0.3 * len(limit)) - 1]
    model = train(fresh(), some(digits, 300), replace(QUICK, epochs=2, prune="fixed"), device="cpu").model
    for name, weight in weights_of(model).items():
        assert torch.equal(weight == 0, start[name].abs() <= limit)


def test_one_shot_pruning_changes_nothing_but_the_smallest_weights_at_the_end(digits: Dataset) -> None:
    settings = replace(QUICK, epochs=1, grad_align=0.0)
    plain = weights_of(train(fresh(), some(digits, 300), settings, device="cpu").model)
    pruned = weights_of(train(fresh(), some(digits, 300), replace(settings, prune="one-shot"), device="cpu").model)
    zeros = sum(int((w == 0).sum()) for w in pruned.values())
    assert zeros == round(0.3 * sum(w.numel() for w in pruned.values()))
    for name, weight in pruned.items():
        assert torch.equal(weight[weight != 0], plain[name][weight != 0])


# The run directory


def test_the_run_directory_holds_metrics_and_models_that_load(digits: Dataset, tmp_path: Path) -> None:
    part = some(digits, 300)
    result = train(fresh(), part, replace(QUICK, epochs=3), run_dir=tmp_path, device="cpu", seed=7)
    records = lines(tmp_path)
    assert [r["epoch"] for r in records] == [1, 2, 3]
    assert {"loss", "objective", "grad-align", "accuracy", "sa", "ra", "lr", "seconds"} <= records[0].keys()
    assert tuple(records) == result.history
    assert result.checkpoint == tmp_path / "checkpoints" / "best.safetensors"
    assert_same_weights(models.load(result.checkpoint), result.model)
    best = max(records, key=lambda r: r["ra"])  # the first of equals
    assert result.best_epoch == best["epoch"]
    x, y = part.x_train[part.split()[1]], part.y_train[part.split()[1]]
    assert accuracy(result.model, x, y) == pytest.approx(best["sa"])
    last = models.load(tmp_path / "checkpoints" / "last.safetensors")
    assert accuracy(last, x, y) == pytest.approx(records[-1]["sa"])
    assert models.read_metadata(result.checkpoint)["extra"]["settings"]["eps"] == QUICK.eps


def test_tensorboard_gets_the_metrics_or_its_absence_is_told(digits: Dataset, tmp_path: Path) -> None:
    settings = replace(QUICK, epochs=1, grad_align=0.0, tensorboard=True)
    if find_spec("tensorboard") is None:
        with pytest.raises(SettingsError, match="pip install tensorboard"):
            train(fresh(), some(digits, 150), settings, run_dir=tmp_path, device="cpu")
    else:
        train(fresh(), some(digits, 150), settings, run_dir=tmp_path, device="cpu")
        assert list((tmp_path / "tensorboard").iterdir())


def test_select_last_keeps_the_last_epoch(digits: Dataset, tmp_path: Path) -> None:
    settings = replace(QUICK, epochs=2, select="last")
    result = train(fresh(), some(digits, 300), settings, run_dir=tmp_path, device="cpu")
    assert result.checkpoint == tmp_path / "checkpoints" / "last.safetensors"
    assert_same_weights(models.load(result.checkpoint), result.model)


@pytest.mark.long
def test_a_run_may_hold_out_fewer_images_or_none(digits: Dataset) -> None:
    settings = replace(QUICK, epochs=1, select="last", held_out=0)
    step = prepare(fresh(), digits, settings, torch.device("cpu"))
    assert len(step.x) == len(digits.x_train)
    assert len(prepare(fresh(), digits, replace(settings, held_out=10), torch.device("cpu")).x) == len(step.x) - 10
    assert "sa" not in train(fresh(), digits, settings, device="cpu").history[-1]
    assert "sa" in train(fresh(), digits, replace(settings, held_out=10), device="cpu").history[-1]
    with pytest.raises(SettingsError, match="holds out no images"):
        train(fresh(), digits, replace(settings, select="best"), device="cpu")


def test_without_held_out_images_the_last_epoch_is_the_only_choice(digits: Dataset) -> None:
    nothing = replace(some(digits, 96), val_size=0)
    with pytest.raises(SettingsError, match="set select to last"):
        train(fresh(), nothing, QUICK, device="cpu")
    result = train(fresh(), nothing, replace(QUICK, epochs=1, select="last"), device="cpu")
    assert "ra" not in result.history[0]


@pytest.mark.parametrize("prune", ["none", "fixed", "one-shot"])
def test_zero_epochs_give_back_the_start(prune: str, digits: Dataset, tmp_path: Path) -> None:
    result = train(fresh(), digits, replace(QUICK, epochs=0, prune=prune), run_dir=tmp_path, device="cpu")
    assert_same_weights(result.model, fresh())
    assert result.history == ()
    assert result.checkpoint is not None
    assert_same_weights(models.load(result.checkpoint), fresh())


def test_the_seed_decides_and_the_global_generator_is_not_used(digits: Dataset) -> None:
    part, settings = some(digits, 150), replace(QUICK, epochs=1)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one = train(fresh(), part, settings, device="cpu", seed=1).model
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert_same_weights(one, train(fresh(), part, settings, device="cpu", seed=1).model)
    other = train(fresh(), part, settings, device="cpu", seed=2).model
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


# Resuming

KILLED = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(int(sys.argv[3]))
sys.path.insert(0, sys.argv[1])
from test_train_loop import RESUMED, grafted, some
from lipgraft import data
from lipgraft.training import train
train(grafted(), some(data.load("digits"), 300), RESUMED, run_dir=Path(sys.argv[2]), device="cpu", seed=3)
"""
RESUMED = replace(QUICK, epochs=9, batch=50, objective="fgsm-mep", grad_align=0.0, l1=1e-5, slope=1e-5, prune="fixed")


def test_after_kill_9_a_resumed_run_ends_with_the_same_weights_bit_for_bit(digits: Dataset, tmp_path: Path) -> None:
    run, part = tmp_path / "killed", some(digits, 300)
    threads = str(torch.get_num_threads())  # other threads add in another order, and end with other bits
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(Path(__file__).parent), str(run), threads])
    try:
        while child.poll() is None and not ((run / "metrics.jsonl").exists() and len(lines(run)) >= 3):
            time.sleep(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode == -signal.SIGKILL
    assert not (run / "checkpoints" / "last.safetensors").exists()  # it was in the middle
    resumed = train(grafted(), part, RESUMED, run_dir=run, resume=True, device="cpu", seed=3)
    whole = train(grafted(), part, RESUMED, run_dir=tmp_path / "whole", device="cpu", seed=3)
    assert_same_weights(resumed.model, whole.model)
    for name in ("state", "last", "best"):
        files = [safe_open(d / "checkpoints" / f"{name}.safetensors", "pt") for d in (run, tmp_path / "whole")]
        assert all(torch.equal(files[0].get_tensor(k), files[1].get_tensor(k)) for k in files[0].keys())  # noqa: SIM118
    timeless = [[{k: v for k, v in r.items() if k != "seconds"} for r in lines(d)] for d in (run, tmp_path / "whole")]
    assert timeless[0] == timeless[1]
    assert len(timeless[0]) == 9


@pytest.mark.long
def test_a_run_with_batchnorm_that_stops_while_the_radius_grows_goes_on_where_it_was(
    digits: Dataset, tmp_path: Path
) -> None:
    settings = replace(
        WARM, objective="ibp", epochs=5, ramp_from=1, ramp_epochs=3, average_from=2, average_every=2, clean_share=0.2
    )
    part = some(digits, 150)

    def start() -> nn.Module:
        return models.build("cnn5", "digits", seed=0)

    def stop(done: int, total: int, last: Mapping[str, float]) -> None:
        if last.get("epoch") == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(start(), part, settings, run_dir=tmp_path / "stopped", device="cpu", progress=stop)
    resumed = train(start(), part, settings, run_dir=tmp_path / "stopped", resume=True, device="cpu")
    whole = train(start(), part, settings, device="cpu")
    assert_same_weights(resumed.model, whole.model)
    assert [r["loss"] for r in resumed.history] == [r["loss"] for r in whole.history]


def test_resuming_a_finished_run_returns_its_result(digits: Dataset, tmp_path: Path) -> None:
    part, settings = some(digits, 150), replace(QUICK, epochs=1)
    done = train(fresh(), part, settings, run_dir=tmp_path, device="cpu")
    again = train(fresh(), part, settings, run_dir=tmp_path, resume=True, device="cpu")
    assert_same_weights(done.model, again.model)
    assert again.history == done.history


def test_a_run_is_not_overwritten_nor_resumed_as_another(digits: Dataset, tmp_path: Path) -> None:
    part, settings = some(digits, 150), replace(QUICK, epochs=1, grad_align=0.0)
    train(grafted(), part, settings, run_dir=tmp_path, device="cpu")
    with pytest.raises(SettingsError, match="already holds a run"):
        train(grafted(), part, settings, run_dir=tmp_path, device="cpu")
    with pytest.raises(SettingsError, match=r"settings\.lr = 0\.05, now it is 0\.01;"):
        train(grafted(), part, replace(settings, lr=0.01), run_dir=tmp_path, resume=True, device="cpu")
    with pytest.raises(SettingsError, match="seed = 0, now it is 1"):
        train(grafted(), part, settings, run_dir=tmp_path, resume=True, device="cpu", seed=1)
    with pytest.raises(CheckpointError, match="another network"):
        train(fresh(), part, settings, run_dir=tmp_path, resume=True, device="cpu")
    other = apply(fresh(), {"act1": torch.ones(16, 8, 8, dtype=torch.bool)}, input_shape=(1, 8, 8))
    with pytest.raises(SettingsError, match="grafts other neurons"):
        train(other, part, settings, run_dir=tmp_path, resume=True, device="cpu")
    state = tmp_path / "checkpoints" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        train(grafted(), part, settings, run_dir=tmp_path, resume=True, device="cpu")


# Divergence


def test_a_diverging_run_stops_and_keeps_the_last_good_models(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first epoch is good, in the second the learning rate explodes."""
    monkeypatch.setitem(SCHEDULES, "explosion", lambda settings, passed: 1e30 if passed >= 1 else 1.0)
    part = some(digits, 300)
    settings = replace(QUICK, epochs=5, schedule="explosion", grad_align=0.0, select="last")
    good = train(fresh(), part, replace(settings, epochs=1), device="cpu")
    with pytest.raises(NumericalError, match=r"diverged in epoch 2.*after epoch 1; lower the learning rate"):
        train(fresh(), part, settings, run_dir=tmp_path, device="cpu")
    assert_same_weights(models.load(tmp_path / "checkpoints" / "last.safetensors"), good.model)
    assert [record["epoch"] for record in lines(tmp_path)] == [1]
    with pytest.raises(NumericalError, match="diverged in epoch 2"):
        train(fresh(), part, settings, run_dir=tmp_path, resume=True, device="cpu")
    model = fresh()
    with pytest.raises(NumericalError, match="diverged in epoch 2"):
        train(model, part, settings, device="cpu")


def test_a_model_with_nan_weights_is_refused(digits: Dataset) -> None:
    model = fresh()
    next(model.parameters()).data[0] = torch.nan
    with pytest.raises(NumericalError, match="NaN or infinite"):
        train(model, digits, QUICK, device="cpu")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objective": "fatt"}, "Did you mean 'fat'"),
        ({"batch": 10_000}, "smaller batch"),
        ({"schedule": "x"}, "schedule"),
    ],
)
def test_wrong_settings_are_found_before_training(change: dict[str, Any], words: str, digits: Dataset) -> None:
    with pytest.raises(SettingsError, match=words):
        train(fresh(), digits, replace(QUICK, **change), device="cpu")
