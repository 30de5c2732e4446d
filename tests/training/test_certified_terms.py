"""Certified objectives and their regulariser against formulas with dense matrices, their bounds against samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import certified_formulas
from lipgraft.grafting import apply
from lipgraft.models import Normalise, fold_batchnorm
from lipgraft.network import Scale, evaluate
from lipgraft.training import OBJECTIVES, REGULARISERS
from lipgraft.training.folded import folded_margins
from lipgraft.training.intervals import box_balls, clean_logits, graph_of, margin_bounds
from lipgraft.training.objectives.certified import interval_margins
from lipgraft.training.objectives.ibp import crown_margins
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
    with_batchnorm,
)

CERTIFIED = sorted(name for name, objective in OBJECTIVES.items() if objective.bounds)
WAYS: dict[str, dict[str, Any]] = {
    "plain, all of eps": {},
    "clean images too": {"clean_share": 0.3},
    "far attack, several starts": {"attack_reach": 2.1, "attack_restarts": 3, "attack_step_size": 0.7},
    "the worst of all steps": {"attack_worst": True, "attack_steps": 4, "attack_step_size": 1.6, "ibp_share": 0.1},
    "the worst of all steps and starts": {"attack_worst": True, "attack_restarts": 2, "attack_step_size": 1.6},
    "large share, shrunk": {"ibp_share": 0.6, "small_box": 0.4, "relu_shrink": 0.8},
    "lines folded": {"ibp_share": 0.6, "relu_shrink": 0.8, "fold_lines": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [network, grafted])
@pytest.mark.parametrize("name", CERTIFIED)
def test_a_certified_objective_is_its_formula_with_its_gradient(
    name: str, make: Callable[[], nn.Sequential], way: str
) -> None:
    model, settings = make(), replace(SETTINGS, objective=name, **WAYS[way])
    batch = replace(batch_of(), share=torch.tensor(0.4) if WAYS[way] else 1.0)
    value, logits = OBJECTIVES[name].loss(task_of(model, settings), batch)
    assert logits.shape == (COUNT, CLASSES)
    assert_same(value, certified_formulas.loss(name, model, batch, settings, seed=1), model)


def bare() -> nn.Sequential:
    """No linear layer at the end: the logits are bounded one by one."""
    return nn.Sequential(*network(), nn.ReLU())


@pytest.mark.parametrize("make", [network, grafted, Residual, bare, lambda: network(nn.Tanh), lambda: network(nn.GELU)])
def test_margin_bounds_hold_at_sampled_points_and_corners(make: Callable[[], nn.Module]) -> None:
    model, batch = make(), batch_of()
    task, own = task_of(model, replace(SETTINGS, objective="ibp")), batch.y[:, None]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        intervals = interval_margins(task, batch)
        crown = crown_margins(graph_of(task, batch), box_balls(task, batch), batch.y)
        for i in range(200):
            noise = 2 * torch.rand(batch.x.shape, generator=generator) - 1
            logits = model((batch.x + EPS * (noise.sign() if i % 2 else noise)).clamp(0, 1))
            margins = logits.gather(1, own) - logits
            assert (margins >= intervals - 1e-4).all()
            assert (margins >= crown - 1e-4).all()
    assert (intervals.gather(1, own) == 0).all()


def grafted_residual() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    masks = {name: torch.rand(2, 2, 2, generator=generator) < 0.5 for name in ("act1", "act2")}
    return apply(Residual(), masks, slope=-0.4, intercept=0.2, input_shape=SHAPE)


@pytest.mark.parametrize("make", [network, grafted, grafted_residual, lambda: nn.Sequential(*grafted(), nn.Tanh())])
def test_folded_margins_are_never_looser_and_hold_at_sampled_points_and_corners(make: Callable[[], nn.Module]) -> None:
    model, batch = make(), batch_of()
    task, own = task_of(model, replace(SETTINGS, objective="ibp")), batch.y[:, None]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        balls, graph = box_balls(task, batch), graph_of(task, batch)
        plain, folded = margin_bounds(graph, balls, batch.y), folded_margins(graph, balls, batch.y)
        for i in range(200):
            noise = 2 * torch.rand(batch.x.shape, generator=generator) - 1
            logits = model((batch.x + EPS * (noise.sign() if i % 2 else noise)).clamp(0, 1))
            assert (logits.gather(1, own) - logits >= folded - 1e-4).all()
    assert (folded >= plain - 1e-4).all()
    assert (folded.gather(1, own) == 0).all()
    has_lines = any(node.graft is not None for _, node in graph.activations())
    assert bool((folded > plain + 1e-2).any()) == has_lines


def test_the_bounds_of_a_network_of_lines_alone_are_exact() -> None:
    masks = {"2": torch.ones(4, 3, 3, dtype=torch.bool), "5": torch.ones(8, dtype=torch.bool)}
    model, batch = apply(network(), masks, slope=0.3, intercept=0.2, input_shape=SHAPE), batch_of()
    task = task_of(model, replace(SETTINGS, objective="ibp"))
    with torch.no_grad():
        found = folded_margins(graph_of(task, batch), box_balls(task, batch), batch.y)
    crown = crown_margins(graph_of(task, batch), box_balls(task, batch), batch.y)
    torch.testing.assert_close(found, crown.detach(), atol=1e-4, rtol=1e-4)


def test_the_share_of_eps_is_the_radius_of_the_bounds() -> None:
    model, half = network(), replace(SETTINGS, objective="ibp", eps=EPS / 2)
    with_share = interval_margins(task_of(model, replace(half, eps=EPS)), replace(batch_of(), share=torch.tensor(0.5)))
    torch.testing.assert_close(with_share, interval_margins(task_of(model, half), batch_of()))


# BatchNorm


@pytest.mark.parametrize("name", CERTIFIED)
def test_every_pass_sees_batchnorm_with_the_statistics_of_the_clean_batch(name: str) -> None:
    """The loss is that of the network whose fixed statistics are those of the batch, folded into its layers."""
    model, batch = with_batchnorm().train(), batch_of()
    settings = replace(SETTINGS, objective=name, slope=0.0, rs=0.0, ibp_share=0.5, clean_share=0.2)
    value, _ = OBJECTIVES[name].loss(task_of(model, settings), batch)
    fixed = with_batchnorm().train()
    seen = {1: COUNT * 4, 5: COUNT}  # numbers behind each statistic, by the layer's place
    for i in seen:
        fixed[i].momentum = 1.0
    fixed(batch.x)
    for i, count in seen.items():
        fixed[i].running_var.mul_((count - 1) / count)  # PyTorch keeps the variance of a sample
    folded = fold_batchnorm(fixed.eval())
    expected = certified_formulas.loss(name, folded, batch, settings, seed=1)
    torch.testing.assert_close(value, expected, atol=1e-4, rtol=1e-4)


def test_the_clean_pass_is_that_of_pytorch_with_its_gradient_and_its_running_statistics() -> None:
    model, batch = with_batchnorm().train(), batch_of()
    twin = copy.deepcopy(model)
    task = task_of(model, replace(SETTINGS, objective="ibp", slope=0.0, rs=0.0))
    loss = F.cross_entropy(clean_logits(task, batch), batch.y)
    expected = F.cross_entropy(twin(batch.x), batch.y)
    torch.testing.assert_close(loss, expected)
    for (name, buffer), other in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(buffer, other, msg=name)
    got = torch.autograd.grad(loss, list(model.parameters()))
    for one, wanted in zip(got, torch.autograd.grad(expected, list(twin.parameters())), strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-5, rtol=1e-4)


class Branching(nn.Module):
    """A convolution that its BatchNorm and another layer read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu, *rest = with_batchnorm()
        self.rest = nn.Sequential(*rest)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        out: Tensor = self.rest(self.relu(self.norm(z)) + self.relu(z))
        return out


def without_parameters() -> nn.Module:
    model = with_batchnorm()
    model[1], model[5] = nn.BatchNorm2d(4, affine=False), nn.BatchNorm1d(8, affine=False)
    return model


@pytest.mark.parametrize(("make", "scales"), [(with_batchnorm, 1), (without_parameters, 1), (Branching, 2)])
def test_a_convolution_takes_its_batchnorm_over_and_other_points_have_the_clean_batchs_statistics_and_gradients(
    make: Callable[[], nn.Module], scales: int
) -> None:
    model, batch = make().train(), batch_of()
    twin = copy.deepcopy(model)
    points = batch.x + 0.1 * torch.randn(batch.x.shape, generator=torch.Generator().manual_seed(7))
    graph = graph_of(task_of(model, replace(SETTINGS, objective="ibp", slope=0.0, rs=0.0)), batch)
    assert sum(isinstance(node, Scale) for node in graph.nodes) == scales
    got = evaluate(graph, points)[graph.output]
    stacked = torch.cat([batch.x, points])
    for layer in twin.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.forward = partial(normalised_by_the_first, layer, len(batch.x))  # type: ignore[method-assign]
    expected = twin(stacked)[len(batch.x) :]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    weights = torch.randn(got.shape, generator=torch.Generator().manual_seed(8))
    ours = torch.autograd.grad((got * weights).sum(), list(model.parameters()))
    for one, wanted in zip(ours, torch.autograd.grad((expected * weights).sum(), list(twin.parameters())), strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-4, rtol=1e-3)


def normalised_by_the_first(layer: nn.BatchNorm2d, count: int, z: Tensor) -> Tensor:
    """BatchNorm of all rows by the mean and variance of the first ones."""
    axes = [0, *range(2, z.ndim)]
    per_channel = (-1, *[1] * (z.ndim - 2))
    var, mean = torch.var_mean(z[:count], axes, correction=0)
    out = (z - mean.reshape(per_channel)) / torch.sqrt(var + layer.eps).reshape(per_channel)
    return out * layer.weight.reshape(per_channel) + layer.bias.reshape(per_channel) if layer.affine else out


# The regulariser of the warm-up


def direct_ibp_reg(model: nn.Sequential, x: Tensor, radius: Tensor, share: float) -> Tensor:
    def short(ratio: Tensor) -> Tensor:
        return (0.5 - ratio).clamp(min=0) / 0.5

    *found, _ = certified_formulas.pre_activations(model, x, radius)[2]
    activations = certified_formulas.pre_activations(model, x, radius)[1]
    total = torch.zeros(())
    for (lb, ub), activation in zip(found, activations, strict=True):
        centre, kept = (lb + ub) / 2, ~getattr(activation, "mask", torch.zeros(lb.shape[1], dtype=torch.bool)).flatten()
        on, off = (lb > 0) & kept, (ub < 0) & kept
        spread = (centre - centre.mean()) ** 2
        means = centre[on].sum() / -centre[off].sum()
        variances = spread[on].sum() / spread[off].sum()
        total = total + short(radius.mean() / ((ub - lb) / 2).mean())
        total = total + short(torch.minimum(means, 1 / means)) + short(torch.minimum(variances, 1 / variances))
    return (1 - share) * total / len(found)


@pytest.mark.parametrize("make", [network, grafted])
def test_the_regulariser_of_the_warm_up_is_its_formula_with_its_gradient(make: Callable[[], nn.Sequential]) -> None:
    model, share = make(), 0.1
    batch = replace(batch_of(), share=torch.tensor(share))
    value = REGULARISERS["ibp-reg"](task_of(model), batch)
    assert value > 0.1
    assert_same(value, direct_ibp_reg(model, *certified_formulas.box(batch, EPS), share), model)


def test_the_regulariser_measures_the_images_behind_their_normalisation() -> None:
    """The same pre-activations from images a hundred times as wide are tight."""
    values = []
    for std in (0.01, 1.0):
        model = nn.Sequential(Normalise([0.0, 0.0], [std, std]), *network())
        with torch.no_grad():
            model[2].weight.mul_(std)
        values.append(REGULARISERS["ibp-reg"](task_of(model), replace(batch_of(), share=0.5)))
    assert values[0] < values[1]


def test_the_regulariser_vanishes_at_full_radius_and_survives_layers_without_stable_neurons() -> None:
    model = network()
    assert REGULARISERS["ibp-reg"](task_of(model), batch_of()) == 0
    batch = replace(batch_of(), share=torch.tensor(0.99))
    wide = task_of(model, replace(SETTINGS, eps=1.0))
    value = REGULARISERS["ibp-reg"](wide, batch)
    assert all(torch.isfinite(g).all() for g in gradients(value, model))
