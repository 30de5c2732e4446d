"""Attacks: in the box, honest about what they return, and strong enough on models that are easy to break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lipgraft as lg
from lipgraft.attacks import ATTACKS, attack, fgsm_steps, pgd_steps, search
from lipgraft.attacks.climb import looks
from lipgraft.attacks.methods import logits_ratio, target_ratio
from lipgraft.attacks.search import _Run
from lipgraft.errors import NumericalError, SettingsError

METHODS = sorted(ATTACKS)
ADAPTIVE = [name for name in METHODS if ATTACKS[name].adaptive]
ROOT = Path(__file__).parents[2]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(weight: Tensor, bias: Tensor) -> nn.Sequential:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight.data, layer.bias.data = weight, bias
    return nn.Sequential(nn.Flatten(), layer)


def small_network(shape: tuple[int, ...], classes: int = 4, seed: int = 0) -> nn.Sequential:
    """A random ReLU network with a dropout and a BatchNorm that would show a wrong mode."""
    size, g = torch.Size(shape).numel(), generator(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=g) / 2)
    return model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(3,), (2, 4, 4), (5, 3)])
def test_the_result_is_in_the_box_and_in_the_valid_range(method: str, shape: tuple[int, ...]) -> None:
    model, x = small_network(shape), torch.rand(7, *shape, generator=generator(1))
    y = torch.randint(0, 4, (7,), generator=generator(2))
    eps = torch.linspace(0.0, 0.3, 7)
    adversarial = attack(model, x, y, eps, method, steps=5, restarts=2)
    assert adversarial.shape == x.shape
    radius = eps.reshape(-1, *[1] * len(shape))
    assert ((adversarial - x).abs() <= radius + 1e-6).all()
    assert adversarial.min() >= 0
    assert adversarial.max() <= 1
    assert torch.equal(adversarial[0], x[0])  # eps 0 leaves nothing but the point


@pytest.mark.parametrize("method", METHODS)
def test_without_limits_the_box_is_not_clipped(method: str) -> None:
    model = linear(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0.0, -10.0]))
    x = torch.zeros(1, 2)
    found = attack(model, x, torch.tensor([0]), 5.0, method, low=None, high=None, steps=20)
    assert found[0, 0] < -1.0
    clipped = attack(model, x, torch.tensor([0]), 5.0, method, steps=20)
    assert clipped.min() >= 0


@pytest.mark.parametrize("method", METHODS)
def test_a_breakable_model_is_broken_and_a_robust_one_is_not(method: str) -> None:
    """On a linear model the exact answer is known: the margin's worst case is its value minus eps |w|_1."""
    g = generator(3)
    weight, bias = torch.randn(2, 6, generator=g), torch.zeros(2)
    model = linear(weight, bias)
    x = torch.rand(200, 6, generator=g)
    y = model(x).argmax(1)
    w = weight[1] - weight[0]
    margin = (x @ w).abs()
    worst = margin - 0.1 * w.abs().sum()
    found = search(model, x, y, 0.1, method, low=None, high=None, steps=20, step_size=2.0)  # crosses the whole box
    breakable = worst < 0
    assert 20 < breakable.sum() < 180
    assert torch.equal(found.broken, breakable)
    assert torch.equal(model(found.x).argmax(1) != y, found.broken)
    torch.testing.assert_close(found.margin[~breakable], -worst[~breakable], atol=1e-4, rtol=1e-3)


def test_targeted_restarts_reach_every_wrong_class() -> None:
    """Class 2 can be reached though cross-entropy climbs towards class 1."""
    weight = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    model = linear(weight, torch.tensor([0.0, -0.15, -0.29]))
    x, y = torch.zeros(1, 2), torch.tensor([0])
    found = search(model, x, y, 0.1, "pgd-targeted", low=None, high=None, steps=10)
    assert found.broken.all()
    assert int(model(found.x).argmax()) == 2


def test_the_likeliest_wrong_class_comes_first() -> None:
    """Class 2 can be reached and class 1 cannot."""
    weight, x, y = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]]), torch.zeros(1, 2), torch.tensor([0])

    def broken(bias: list[float], **some: int) -> bool:
        model = linear(weight, torch.tensor(bias))
        return bool(search(model, x, y, 0.1, "pgd-targeted", low=None, high=None, steps=10, **some).broken)

    assert not broken([0.0, -0.15, -0.29], last=1)
    assert broken([0.0, -0.15, -0.29], first=1)
    assert broken([0.0, -0.30, -0.29], last=1)


@pytest.mark.parametrize("method", METHODS)
def test_every_start_is_followed_once_however_the_ascents_are_parted(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = linear(torch.zeros(4, 3), torch.tensor([1.0, 0.0, 0.0, 0.0]))  # robust: no image is left out
    x, y = torch.full((5, 3), 0.5), torch.zeros(5, dtype=torch.int64)
    begun: list[tuple[int, int]] = []

    def ascend(self: _Run, rows: Tensor, start: Tensor, *given: Any) -> None:
        begun.extend(zip(rows.tolist(), start.tolist(), strict=True))

    monkeypatch.setattr(_Run, "_ascend", ascend)
    starts = 3 * (3 if ATTACKS[method].targeted else 1)
    for parts in ([{}], [{"last": 1}, {"first": 1}], [{"last": 2}, {"first": 2, "last": 9}, {"first": 9}]):
        begun.clear()
        for part in parts:
            search(model, x, y, 0.1, method, restarts=3, batch=6, **part)
        assert sorted(begun) == [(image, start) for image in range(5) for start in range(starts)]


def test_misclassified_images_are_broken_and_returned_as_they_are() -> None:
    model = linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    x = torch.tensor([[0.5], [0.7]])
    found = search(model, x, torch.tensor([1, 0]), 0.1, steps=3)
    assert found.broken.tolist() == [True, False]
    assert torch.equal(found.x[0], x[0])


@pytest.mark.parametrize("method", METHODS)
def test_the_model_keeps_its_modes_gradients_and_statistics(method: str) -> None:
    model = small_network((4,)).train()
    model[2].eval()
    frozen = next(model.parameters()).requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    attack(model, torch.rand(5, 4), torch.zeros(5, dtype=torch.long), 0.1, method, steps=3)
    assert [m.training for m in model.modules()] == [True, True, True, False, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert not frozen.requires_grad
    assert all(p.requires_grad for p in list(model.parameters())[1:])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_seed_decides_and_the_global_generator_is_not_used() -> None:
    model, x = small_network((4,)), torch.rand(6, 4, generator=generator())
    y = model.eval()(x).argmax(1)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = attack(model, x, y, 0.01, steps=4, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, attack(model, x, y, 0.01, steps=4, seed=5))
    assert not torch.equal(first, attack(model, x, y, 0.01, steps=1, seed=6))


def test_small_batches_find_what_large_batches_find() -> None:
    model = small_network((4,), seed=4)
    x = torch.rand(40, 4, generator=generator(7))
    y = model.eval()(x).argmax(1)
    large = search(model, x, y, 0.15, "pgd-targeted", steps=40, restarts=4)
    small = search(model, x, y, 0.15, "pgd-targeted", steps=40, restarts=4, batch=7)
    assert 0 < large.broken.sum() < 40
    assert torch.equal(large.broken, small.broken)


def test_a_point_where_the_model_overflows_is_no_counterexample() -> None:
    class Bump(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            high = torch.where(x > 0.55, torch.full_like(x, torch.nan), -x)
            return torch.cat([high, high - 1], 1)

    found = search(Bump(), torch.tensor([[0.5]]), torch.tensor([0]), 0.1, steps=12)
    assert not found.broken.any()
    assert torch.isfinite(found.x).all()
    assert torch.isfinite(found.margin).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.tensor([[float("nan")]])}, "NaN"),
        ({"eps": float("nan")}, "eps"),
        ({"eps": -0.1}, "eps"),
        ({"eps": torch.tensor([0.1, 0.1])}, "eps"),
        ({"method": "pdg"}, "Did you mean 'pgd'"),
        ({"steps": 0}, "steps"),
        ({"restarts": 0}, "restarts"),
        ({"y": torch.tensor([2])}, "0..1"),
        ({"y": torch.tensor([0, 1])}, "one class per image"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(change: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"x": torch.zeros(1, 1), "y": torch.tensor([0]), "eps": 0.1, **change}
    model = linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    with pytest.raises((SettingsError, NumericalError), match=words):
        attack(model, **given)  # type: ignore[arg-type]


def test_nan_weights_are_an_error_and_not_a_verdict() -> None:
    model = linear(torch.tensor([[float("nan")], [1.0]]), torch.zeros(2))
    with pytest.raises(NumericalError, match="logits"):
        attack(model, torch.zeros(1, 1), torch.tensor([0]), 0.1)


def test_an_empty_batch_gives_an_empty_batch() -> None:
    assert attack(small_network((4,)), torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), 0.1).shape == (0, 4)


def test_step_sizes_are_those_of_the_reference() -> None:
    assert fgsm_steps(1) == [1.25]
    assert pgd_steps(100) == [0.025] * 100
    sizes = ATTACKS["pgd-targeted"].steps(3, None)
    assert sizes == pytest.approx([0.25 / 0.1, 0.25 * 0.99 / 0.19, 0.25 * 0.99**2 / 0.271])


def test_points_lie_within_eps_exactly() -> None:
    model = linear(torch.tensor([[1.0, -1.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([50.0, 0.0]))
    x = torch.rand(64, 3, generator=generator())
    found = attack(model, x, torch.zeros(64, dtype=torch.int64), 0.1, steps=20)
    assert float((found.double() - x.double()).abs().max()) <= 0.1


@pytest.mark.parametrize("label", [0, 1])
def test_a_tie_is_not_broken_whatever_the_order_of_the_classes(label: int) -> None:
    model = linear(torch.zeros(2, 3), torch.tensor([1.0, 1.0]))
    found = search(model, torch.rand(2, 3, generator=generator()), torch.tensor([label, label]), 0.1, steps=5)
    assert not found.broken.any()


# --- steps that adapt


@pytest.mark.long
@pytest.mark.parametrize("method", ADAPTIVE)
def test_steps_that_adapt_break_what_equal_steps_break_on_a_network_of_the_zoo(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    model = lg.models.load("zoo/cnn-b-cifar10-2-255")
    with np.load(ROOT / "tests" / "images" / "cifar10-test-0-9.npz") as file:
        x, y = lg.data.images(torch.from_numpy(file["x"])), torch.from_numpy(file["y"]).long()
    equal = search(model, x, y, 4 / 255, "pgd", steps=10).broken
    adapted = search(model, x, y, 4 / 255, method, steps=10)
    assert 0 < equal.sum() < len(x)
    assert bool(adapted.broken[equal].all())
    assert torch.equal(model(adapted.x).argmax(1) != y, adapted.broken)


class Hill(nn.Module):
    """The wrong class's lead is highest at one point inside the box, at a height below zero."""

    def forward(self, x: Tensor) -> Tensor:
        lead = -1 - (x - 0.53).square().sum(1)
        return torch.stack([torch.zeros_like(lead), lead], 1)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_steps_that_adapt_settle_on_a_peak_that_the_first_steps_jump_over(method: str) -> None:
    x = torch.full((3, 20), 0.5)
    found = search(Hill(), x, torch.zeros(3, dtype=torch.long), 0.1, method)
    assert float((found.x - 0.53).abs().max()) < 0.01  # the first steps are 0.2 long
    assert not found.broken.any()


def test_steps_are_judged_at_intervals_that_shrink() -> None:
    for steps in (1, 2, 7, 20, 100, 1000):
        found = [0, *looks(steps)]
        assert found == sorted(set(found))
        assert found[-1] <= steps
    gaps = np.diff([0, *looks(1000)])
    assert gaps[0] == 220
    assert (np.diff(gaps) <= 1).all()  # but for rounding up


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_ratios_of_logits_depend_on_neither_scale_nor_offset(classes: int) -> None:
    logits = torch.randn(50, classes, dtype=torch.float64, generator=generator())
    y = torch.randint(0, classes, (50,), generator=generator(1))
    target = (y + 1) % classes
    for ratio in (logits_ratio, target_ratio):
        torch.testing.assert_close(ratio(1000 * logits + 7, y, target), ratio(logits, y, target))
    assert torch.equal(logits_ratio(logits, y, target) > 0, logits.argmax(1) != y)


def test_tied_logits_give_finite_ratios_and_gradients() -> None:
    logits = torch.zeros(2, 5, requires_grad=True)
    y, target = torch.tensor([0, 1]), torch.tensor([2, 3])
    for ratio in (logits_ratio, target_ratio):
        (gradient,) = torch.autograd.grad(ratio(logits, y, target).sum(), logits)
        assert torch.isfinite(gradient).all()
