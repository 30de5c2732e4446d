"""Each objective and regulariser against its formula, written again in a few lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.bounds.interval import interval_bounds
from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.network import trace
from lipgraft.training import OBJECTIVES, REGULARISERS
from lipgraft.training.fused import applies, fat_grad_align
from lipgraft.training.regularisers.grad_align import has_direction, misalignment
from lipgraft.training.regularisers.slope import penalty
from lipgraft.training.task import Batch, Task
from training_cases import (
    CLASSES,
    COUNT,
    EPS,
    SETTINGS,
    SHAPE,
    Residual,
    assert_same,
    batch_of,
    gradients,
    grafted,
    network,
    task_of,
)

# Direct formulas. Each draws its random numbers as the method says, from a generator of the same seed.


def uniform(seed: int = 1) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda: EPS * (2 * torch.rand(COUNT, *SHAPE, generator=generator) - 1)


def grad_x(model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(loss(model(x)), x)[0]


def climb(model: nn.Module, b: Batch, steps: int, size: float, loss: Callable[[Tensor], Tensor]) -> Tensor:
    x = (b.x + uniform()()).clamp(0, 1)
    for _ in range(steps):
        x = x + size * grad_x(model, x, loss).sign()
        x = torch.max(torch.min(x, b.x + EPS), b.x - EPS).clamp(0, 1)
    return x


def direct_standard(model: nn.Module, b: Batch, task: Task) -> Tensor:
    return F.cross_entropy(model(b.x), b.y)


def direct_fat(model: nn.Module, b: Batch, task: Task) -> Tensor:
    return F.cross_entropy(model(climb(model, b, 1, 1.25 * EPS, lambda z: F.cross_entropy(z, b.y))), b.y)


def direct_pgd(model: nn.Module, b: Batch, task: Task) -> Tensor:
    return F.cross_entropy(model(climb(model, b, 3, 2.5 * EPS / 3, lambda z: F.cross_entropy(z, b.y))), b.y)


def direct_trades(model: nn.Module, b: Batch, task: Task) -> Tensor:
    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1).mean()

    clean = model(b.x)
    x = climb(model, b, 3, 2.5 * EPS / 3, lambda z: kl(clean.detach(), z))
    return F.cross_entropy(clean, b.y) + 2.0 * kl(clean, model(x))


def smoothed(logits: Tensor, y: Tensor) -> Tensor:
    labels = torch.full_like(logits, 0.4 / (CLASSES - 1)).scatter(1, y[:, None], 0.6)
    return -(labels * logits.log_softmax(1)).sum(1).mean()


def clip(b: Batch, delta: Tensor) -> Tensor:
    return delta.clamp(-EPS, EPS).clamp(-b.x, 1 - b.x)


def direct_mep(model: nn.Module, b: Batch, task: Task) -> Tensor:
    delta = task.memory["delta"][b.index].clamp(-b.x, 1 - b.x)
    g = grad_x(model, b.x + delta, lambda z: smoothed(z, b.y))
    after = model(b.x + clip(b, delta + EPS * g.sign()))
    return smoothed(after, b.y) + 10 * ((after - model(b.x + delta)) ** 2).mean()


def direct_pco(model: nn.Module, b: Batch, task: Task) -> Tensor:
    delta = task.memory["delta"][b.index].clamp(-b.x, 1 - b.x)
    g = grad_x(model, b.x + delta, lambda z: smoothed(z, b.y))
    new = clip(b, delta + EPS * g.sign())
    before = model(b.x + delta)
    c = 1 - before.softmax(1)[torch.arange(COUNT), b.y].reshape(-1, 1, 1, 1)
    mixed, after = model(c * (b.x + delta) + (1 - c) * (b.x + 1.5 * new)), model(b.x + new)
    gap = ((after - before) ** 2).mean() - ((after - mixed) ** 2).mean()
    return smoothed(mixed, b.y) + 10 * gap.abs()


DIRECT = {
    "standard": direct_standard,
    "fat": direct_fat,
    "pgd": direct_pgd,
    "trades": direct_trades,
    "fgsm-mep": direct_mep,
    "fgsm-pco": direct_pco,
}


CERTIFIED = {"ibp", "crown-ibp", "mtl-ibp", "cc-ibp", "exp-ibp", "sabr"}  # in test_certified_terms.py


def test_every_objective_has_its_formula() -> None:
    assert DIRECT.keys() | CERTIFIED == OBJECTIVES.keys()
    assert {name for name, objective in OBJECTIVES.items() if objective.bounds} == CERTIFIED
    assert REGULARISERS.keys() == {"grad-align", "slope", "rs", "ibp-reg", "l1"}


@pytest.mark.parametrize("name", sorted(DIRECT))
@pytest.mark.parametrize("make", [network, grafted])
def test_an_objective_is_its_formula_with_its_gradient(name: str, make: Callable[[], nn.Module]) -> None:
    model, batch = make(), batch_of()
    task = task_of(model)
    expected = DIRECT[name](model, batch, task_of(model))
    value, logits = OBJECTIVES[name].loss(task, batch)
    assert logits.shape == (COUNT, CLASSES)
    assert_same(value, expected, model)


def test_mep_remembers_the_momentum_and_the_next_perturbation() -> None:
    model, batch = network(), batch_of()
    task, before = task_of(model), task_of(model).memory
    OBJECTIVES["fgsm-mep"].loss(task, batch)
    delta = before["delta"][batch.index].clamp(-batch.x, 1 - batch.x)
    g = grad_x(model, batch.x + delta, lambda z: smoothed(z, batch.y))
    momentum = 0.3 * before["momentum"][batch.index] + g / g.abs().sum()
    torch.testing.assert_close(task.memory["momentum"][batch.index], momentum)
    torch.testing.assert_close(task.memory["delta"][batch.index], clip(batch, delta + EPS * momentum.sign()))
    untouched = [2, 6, 7]
    assert torch.equal(task.memory["delta"][untouched], before["delta"][untouched])


def test_pco_remembers_the_new_perturbation() -> None:
    model, batch = network(), batch_of()
    task, before = task_of(model), task_of(model).memory["delta"][batch.index]
    OBJECTIVES["fgsm-pco"].loss(task, batch)
    delta = before.clamp(-batch.x, 1 - batch.x)
    g = grad_x(model, batch.x + delta, lambda z: smoothed(z, batch.y))
    torch.testing.assert_close(task.memory["delta"][batch.index], clip(batch, delta + EPS * g.sign()))


def test_perturbations_start_at_corners_and_mep_returns_to_them_every_40_epochs() -> None:
    for name, again in (("fgsm-mep", True), ("fgsm-pco", False)):
        task, begin = task_of(network()), OBJECTIVES[name].begin_epoch
        assert begin is not None
        begin(task, 0)
        first = task.memory["delta"].clone()
        assert torch.equal(first.abs(), torch.full_like(first, EPS))
        assert 0.3 < (first > 0).float().mean() < 0.7
        task.memory["delta"].zero_()
        begin(task, 39)
        assert not task.memory["delta"].any()
        begin(task, 40)
        assert task.memory["delta"].any() == again


def test_the_attack_sees_batchnorm_in_evaluation_mode_and_the_loss_in_training_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(32), nn.Linear(32, CLASSES))
    batch, modes = batch_of(), []
    model[1].register_forward_hook(lambda module, *_: modes.append(module.training))
    OBJECTIVES["fat"].loss(task_of(model, replace(SETTINGS, slope=0.0, rs=0.0)), batch)
    assert modes == [False, True]
    assert model.training
    assert model[1].training


# Regularisers


def direct_grad_align(model: nn.Module, b: Batch) -> Tensor:
    def loss(z: Tensor) -> Tensor:
        return F.cross_entropy(z, b.y)

    g1 = grad_x(model, b.x, loss).flatten(1)
    point = (b.x + uniform()()).requires_grad_()
    g2 = torch.autograd.grad(loss(model(point)), point, create_graph=True)[0].flatten(1)
    keep = (g1.norm(dim=1) > 0) & (g2.norm(dim=1) > 0)
    return 1 - F.cosine_similarity(g1[keep], g2[keep], dim=1, eps=1e-20).mean()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        network,
        grafted,
        lambda: network(nn.Tanh),
        lambda: network(nn.Sigmoid),
        lambda: network(lambda: nn.LeakyReLU(0.2)),
    ],
)
def test_grad_align_is_its_formula_with_its_gradient(make: Callable[[], nn.Module], fused: bool) -> None:
    model, batch = make(), batch_of()
    task = task_of(model, replace(SETTINGS, fused=fused))
    assert_same(REGULARISERS["grad-align"](task, batch), direct_grad_align(model, batch), model)


@pytest.mark.parametrize("make", [network, grafted, Residual])
def test_fat_and_grad_align_in_two_passes_equal_the_two_functions_apart(make: Callable[[], nn.Module]) -> None:
    model, batch = make(), batch_of()
    assert applies(task_of(model))
    loss, logits, alignment = fat_grad_align(task_of(model), batch)
    task = task_of(model, replace(SETTINGS, fused=False))
    expected, expected_logits = OBJECTIVES["fat"].loss(task, batch)
    expected_alignment = REGULARISERS["grad-align"](task, batch)
    torch.testing.assert_close(logits, expected_logits)
    torch.testing.assert_close(alignment, expected_alignment)
    assert float(expected_alignment.detach()) > 1e-4  # there is something to align
    assert_same(loss + 3 * alignment, expected + 3 * expected_alignment, model)


@pytest.mark.parametrize("fused", [False, True])
def test_grad_align_leaves_out_images_without_a_gradient_and_stays_finite(fused: bool) -> None:
    """Image 0 is black and the first layer too dim to see it, with or without noise."""
    generator, batch = torch.Generator().manual_seed(0), batch_of()
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    model[1].weight.data, model[1].bias.data = torch.rand(4, 32, generator=generator), torch.full((4,), -4.0)
    batch.x[0] = 0.0
    task = task_of(model, replace(SETTINGS, fused=fused))
    value = REGULARISERS["grad-align"](task, batch)
    g0 = grad_x(model, batch.x, lambda z: F.cross_entropy(z, batch.y, reduction="sum")).flatten(1).norm(dim=1)
    assert g0[0] == 0
    assert (g0 > 0).sum() == COUNT - 1
    assert_same(value, direct_grad_align(model, batch), model)
    assert all(torch.isfinite(g).all() for g in gradients(REGULARISERS["grad-align"](task, batch), model))
    model[1].bias.data.fill_(-1e3)  # now no image has a gradient
    value = REGULARISERS["grad-align"](task, batch)
    assert value == 0
    assert all(torch.isfinite(g).all() for g in gradients(value, model))


def test_a_gradient_that_is_only_rounding_has_no_direction() -> None:
    long, short = torch.randn(3, 8), 1e-5 * torch.randn(1, 8)
    g1, g2 = torch.cat([long, short]), torch.cat([long.roll(1, 1), short.roll(1, 1)])
    value, v = misalignment(g1, g2)
    expected, _ = misalignment(g1[:3], g2[:3])
    assert torch.equal(value, expected)
    assert torch.equal(v[3], torch.zeros(8))
    assert has_direction(g1).squeeze(1).tolist() == [True, True, True, False]
    assert not has_direction(torch.zeros(2, 8)).any()


def test_batchnorm_falls_back_to_double_backward() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    task = task_of(model, replace(SETTINGS, slope=0.0, rs=0.0))
    assert task.network is None
    assert not applies(task)
    batch = batch_of()
    assert_same(REGULARISERS["grad-align"](task, batch), direct_grad_align(model, batch), model)


def test_weights_computed_from_others_fall_back_to_double_backward() -> None:
    """A traced graph would hold a stale copy of the normalised weight."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    nn.utils.parametrizations.weight_norm(model[1])
    task, batch = task_of(model, replace(SETTINGS, slope=0.0, rs=0.0)), batch_of()
    assert task.network is None
    assert_same(REGULARISERS["grad-align"](task, batch), direct_grad_align(model, batch), model)


def layers_of(model: nn.Module, batch: Batch) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(lb, ub, grafted, gamma) of each activation, from bounds computed on the checked box."""
    net = trace(model, SHAPE)
    bounds = interval_bounds(net, Box.linf(batch.x, EPS))
    layers = []
    for _, node in net.activations():
        lb, ub = bounds[node.inputs[0]]
        none = torch.zeros(node.shape, dtype=torch.bool)
        layers.append((lb, ub, *((none, none.float()) if node.graft is None else (node.graft.mask, node.graft.gamma))))
    return layers


@pytest.mark.parametrize("make", [network, grafted, Residual, lambda: network(nn.Tanh)])
@pytest.mark.parametrize("form", ["printed", "symmetric"])
@pytest.mark.parametrize("scope", ["all", "unstable", "grafted"])
def test_the_slope_loss_is_its_formula_with_its_gradient(make: Callable[[], nn.Module], form: str, scope: str) -> None:
    model, batch, k = make(), batch_of(), 3.0
    expected = sum((p.sum() for p in model.parameters()), torch.zeros(())) * 0
    for lb, ub, mask, gamma in layers_of(model, batch):
        for i in range(COUNT):
            chosen = (lb[i] < 0) & (ub[i] > 0) & ~mask
            s = ub[i][chosen] / (ub[i][chosen] - lb[i][chosen])
            inner = 1 - s if form == "printed" else 1 - 2 * s
            expected = expected + (scope != "grafted") * (1 - torch.tanh(k * inner**2)).sum() / COUNT
        inner = 1 - gamma[mask] if form == "printed" else 1 - 2 * gamma[mask]
        expected = expected + (scope != "unstable") * (1 - torch.tanh(k * inner**2)).sum()
    task = task_of(model, replace(SETTINGS, slope_form=form, slope_scope=scope, slope_k=k))
    value = REGULARISERS["slope"](task, batch)
    if make is not grafted and scope == "grafted":
        assert value == 0
    else:
        assert_same(value, expected, model)


def test_the_slope_penalty_has_the_values_of_the_reference() -> None:
    s = torch.tensor([0.0, 0.4, 0.5, 1.0])
    assert penalty(s, "printed", 2.0).tolist() == pytest.approx([0.036, 0.383, 0.538, 1.0], abs=1e-3)
    assert penalty(s, "symmetric", 2.0).tolist() == pytest.approx([0.036, 0.920, 1.0, 0.036], abs=1e-3)


@pytest.mark.parametrize("make", [network, grafted, Residual, lambda: network(nn.Tanh)])
def test_the_rs_loss_is_its_formula_with_its_gradient(make: Callable[[], nn.Module]) -> None:
    model, batch = make(), batch_of()
    expected = torch.zeros(())
    for lb, ub, mask, _ in layers_of(model, batch):
        for i in range(COUNT):
            expected = expected - torch.tanh(1 + lb[i] * ub[i])[~mask].sum() / COUNT
    assert_same(REGULARISERS["rs"](task_of(model), batch), expected, model)


@pytest.mark.parametrize("name", ["slope", "rs"])
def test_interval_losses_refuse_batchnorm_with_advice(name: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(32), nn.Linear(32, CLASSES))
    with pytest.raises(SettingsError, match="fold_batchnorm"):
        REGULARISERS[name](task_of(model), batch_of())


def test_l1_is_the_sum_over_weights_without_biases_slopes_and_intercepts() -> None:
    model = grafted()
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weights) == 3
    expected = torch.stack([w.abs().sum() for w in weights]).sum()
    assert_same(REGULARISERS["l1"](task_of(model), batch_of()), expected, model)
