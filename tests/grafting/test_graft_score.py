"""Scores over a calibration set."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft import data
from lipgraft.bench import bench_scores
from lipgraft.bounds import bound
from lipgraft.box import Box
from lipgraft.errors import DataError, NumericalError, SettingsError, UnsupportedOperationError
from lipgraft.grafting import LayerScores, apply, calibration_set, calibration_size, score
from lipgraft.grafting.graph import weight_factor
from lipgraft.network import trace

SHAPE, EPS = (1, 6, 6), 0.05


def small(activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 3, 3, stride=2), activation(), nn.Conv2d(3, 4, 2), activation(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4, 6), activation(), nn.Linear(6, 3))


def images(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, *SHAPE, generator=generator), torch.randint(0, 3, (count,), generator=generator)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid, nn.Tanh])
@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_reductions_equal_those_of_every_images_bounds(activation, method):
    model, (x, y) = small(activation), images()
    scores = score(model, x, EPS, method, y=y, batch=5, slope=0.3)
    layers = bound(model, Box.linf(x, EPS), method=method, neurons="all").layers
    act = activation()
    for name, (lb, ub) in layers.items():
        got = scores.layers[name]
        out = act(ub) - act(lb)
        assert got.s_u.equal(((lb < 0) & (ub > 0)).sum(0))
        torch.testing.assert_close(got.width_max, (ub - lb).amax(0))
        torch.testing.assert_close(got.width_mean, (ub - lb).mean(0))
        torch.testing.assert_close(got.lower_min, lb.amin(0))
        torch.testing.assert_close(got.upper_max, ub.amax(0))
        torch.testing.assert_close(got.gain_max, (out - 0.3 * (ub - lb)).amax(0))
        torch.testing.assert_close(got.gain_mean, (out - 0.3 * (ub - lb)).mean(0))
        torch.testing.assert_close(got.s_wi, weight_factor(trace(model, SHAPE), name) * got.width_max)


def test_significance_is_the_mean_size_of_value_and_gradient_at_the_pre_activation():
    model, (x, y) = small(), images()
    scores = score(model, x, EPS, "ibp", y=y, batch=5)
    z1 = model[0](x)
    z1.retain_grad()
    z2 = model[2](model[1](z1))
    z2.retain_grad()
    F.cross_entropy(model[3:](z2), y, reduction="sum").backward()
    for name, z in {"1": z1, "3": z2}.items():
        torch.testing.assert_close(scores.layers[name].magnitude, z.detach().abs().mean(0))
        torch.testing.assert_close(scores.layers[name].gradient, z.grad.abs().mean(0))


def test_the_gain_of_an_unstable_relu_is_ub_minus_gamma_times_the_width():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    scores = score(model, torch.zeros(1, 1), 0.0, low=None, high=None, slope=0.25)
    assert scores.layers["1"].gain_max.item() == 0.0
    with torch.no_grad():
        model[0].bias.fill_(-0.5)  # z in [-1.5, 0.5]: gain 0.5 - 0.25 * 2
    scores = score(model, torch.zeros(1, 1), 1.0, low=None, high=None, slope=0.25)
    torch.testing.assert_close(scores.layers["1"].gain_max, torch.tensor([0.0]))
    torch.testing.assert_close(scores.layers["1"].width_max, torch.tensor([2.0]))


@pytest.mark.parametrize("batch", [1, 5, 100])
def test_the_batch_size_does_not_change_the_scores(batch):
    model, (x, y) = small(), images()
    one, other = score(model, x, EPS, y=y, batch=4), score(model, x, EPS, y=y, batch=batch)
    for name in one.layers:
        for field in dataclasses.fields(LayerScores):
            a, b = (getattr(s.layers[name], field.name) for s in (one, other))
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_bounding_needed_neurons_alone_leaves_instability_the_same():
    model, (x, _) = small(), images()
    every, needed = score(model, x, EPS), score(model, x, EPS, neurons="needed")
    assert all(every.s_u[name].equal(needed.s_u[name]) for name in every.s_u)


def test_a_grafted_model_is_scored_by_its_own_bounds():
    model, (x, _) = small(), images()
    mask = torch.ones(3, 2, 2, dtype=torch.bool)
    grafted = apply(model, {"1": mask}, input_shape=SHAPE)
    scores = score(grafted, x, EPS)
    assert list(scores.layers) == ["1", "3", "6"]
    lb, ub = bound(grafted, Box.linf(x, EPS), neurons="all").layers["3"]
    assert scores.s_u["3"].equal(((lb < 0) & (ub > 0)).sum(0))


def test_nothing_keeps_a_graph_for_gradients():
    model, (x, y) = small(), images()
    for layer in score(model, x, EPS, y=y).layers.values():
        assert not any(getattr(layer, f.name).requires_grad for f in dataclasses.fields(LayerScores))


@pytest.mark.parametrize(
    ("x", "y", "keywords", "error", "message"),
    [
        (torch.zeros(0, *SHAPE), None, {}, DataError, "calibration set is empty"),
        (torch.zeros(2, *SHAPE, dtype=torch.uint8), None, {}, SettingsError, "must be floats"),
        (torch.zeros(2, *SHAPE), torch.zeros(3, dtype=torch.long), {}, SettingsError, "one class per image"),
        (torch.zeros(2, *SHAPE), None, {"batch": 0}, SettingsError, "batch must be at least 1"),
        (torch.zeros(2, *SHAPE), None, {"bounds": "crwn"}, SettingsError, "unknown bound method 'crwn'"),
    ],
)
def test_bad_input_is_refused(x, y, keywords, error, message):
    with pytest.raises(error, match=message):
        score(small(), x, EPS, y=y, **keywords)


def test_a_network_without_activations_is_refused():
    with pytest.raises(UnsupportedOperationError, match="no activations"):
        score(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), images()[0], EPS)


def test_weights_that_are_not_numbers_are_reported_not_ranked():
    model = small()
    with torch.no_grad():
        model[2].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(NumericalError, match="NaN or infinite"):
        score(model, images()[0], EPS)


def test_the_papers_calibration_sizes():
    assert calibration_size("cnn-b", "cifar10") == 4000
    assert calibration_size("conv-huge", "cifar10") == 2000
    assert calibration_size("resnet4b", "cifar10") == 3000


def test_a_calibration_set_is_a_reproducible_draw_of_training_images_without_the_held_out_ones():
    digits = data.load("digits")
    x, y = calibration_set(digits, 50, seed=3)
    again, _ = calibration_set(digits, 50, seed=3)
    other, _ = calibration_set(digits, 50, seed=4)
    assert x.shape == (50, *digits.input_shape)
    assert x.equal(again)
    assert not x.equal(other)
    train = data.images(digits.x_train[digits.split()[0]])
    for image, label in zip(x[:5], y[:5], strict=True):
        same = (train == image).flatten(1).all(1)
        assert label in digits.y_train[digits.split()[0]][same]
    everything, _ = calibration_set(digits, 10**6)
    assert len(everything) == len(train)
    with pytest.raises(SettingsError, match="count must be at least 1"):
        calibration_set(digits, 0)


def test_the_benchmark_reports_the_images_it_scored():
    model, (x, _) = small(), images()
    result = bench_scores(model, x, EPS, warm_up=2, bounds="ibp")
    assert result.images == 12
    assert result.seconds > 0
    assert result.peak_bytes is None
