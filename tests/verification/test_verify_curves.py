"""Splits of smooth activations, in networks whose true margins are known from a fine grid."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.attained import costs
from lipgraft.bounds.crown import prepare
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.box import Box
from lipgraft.grafting import GraftedActivation
from lipgraft.network import evaluate, trace
from lipgraft.verification import BranchSettings, Limits, Verdict, VerifySettings, stages, verify
from lipgraft.verification.branch_and_bound.branching import Step
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.subproblems import Subproblems

KINDS = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
}
STEEPEST = 1.2  # none of them is steeper
LEFT_OPEN = {"mixed": 30, "sigmoid": 30, "tanh": 30, "softplus": 30}  # networks that need splits; of the others 20
EPS = 1.0
GRID = 601
# In so small a network every multiplier counts: they get more and shorter steps than in a large one.
SETTINGS = VerifySettings(Limits(max_subproblems=1000), branch=BranchSettings(iterations=20, lr_beta=0.05))
NO_SPLITS = VerifySettings(Limits(max_subproblems=0))


def linear(inputs: int, outputs: int, seed: int, scale: float = 1.0) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs)
    layer.weight.data = scale * torch.randn(outputs, inputs, generator=generator)
    layer.bias.data = torch.randn(outputs, generator=generator)
    return layer


def small(kind: str, seed: int) -> nn.Sequential:
    """Two inputs, three curves, two classes."""
    return nn.Sequential(linear(2, 3, seed, 2.0), KINDS[kind](), linear(3, 2, seed + 1))


def mixed(seed: int) -> nn.Sequential:
    """Curves of two kinds and kinks between them; one neuron of the first is a line."""
    first = GraftedActivation(nn.Tanh(), torch.tensor([True, False, False]), 0.5)
    kinks = [linear(3, 3, seed + 1), nn.ReLU(), linear(3, 2, seed + 2), nn.SiLU()]
    return nn.Sequential(linear(2, 3, seed, 1.5), first, *kinks, linear(2, 2, seed + 3))


def grid(x: Tensor) -> Tensor:
    """(GRID^2, 2): points of the box around x, its corners among them."""
    line = torch.linspace(-1, 1, GRID, dtype=torch.float64) * EPS
    return x.double() + torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(-1, 2)


def margins(model: nn.Sequential, points: Tensor) -> Tensor:
    with torch.no_grad():
        out = model.double()(points)
    model.float()
    return out[:, 0] - out[:, 1]


def between(model: nn.Sequential) -> float:
    """How much smaller a margin may be between grid points: the steepness times half the distance of two of them."""
    rows = torch.ones(2, dtype=torch.float64)
    for part in reversed(model):
        rows = rows @ part.weight.detach().double().abs() if isinstance(part, nn.Linear) else rows * STEEPEST
    return float(rows.sum()) * EPS / (GRID - 1)


def shifted(model: nn.Sequential, x: Tensor, least: float) -> nn.Sequential:
    """The network with another bias of class 0: its smallest margin on the grid is `least`."""
    last = model[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.bias[0] += least - margins(model, grid(x)).min()
    return model


def verdict(model: nn.Sequential, x: Tensor, settings: VerifySettings = SETTINGS) -> Verdict:
    return verify(model, x[None], torch.zeros(1, dtype=torch.long), EPS, settings=settings, low=None, high=None)[0]


def middle(seed: int) -> Tensor:
    return torch.randn(2, generator=torch.Generator().manual_seed(seed + 9))


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_branching_proves_what_optimised_lines_leave_open(kind: str) -> None:
    seed = LEFT_OPEN.get(kind, 20)
    model, x = mixed(seed) if kind == "mixed" else small(kind, seed), middle(seed)
    spread = margins(model, grid(x))
    shifted(model, x, between(model) + 0.04 * float(spread.max() - spread.min()))
    assert verdict(model, x, NO_SPLITS).status == "unknown"
    assert verdict(model, x).status == "verified"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_a_network_with_a_counterexample_is_never_verified(kind: str) -> None:
    for seed in (20, 30):
        model, x = mixed(seed) if kind == "mixed" else small(kind, seed), middle(seed)
        # So shallow that attacks may well miss it, and only for the search to find.
        shifted(model, x, -1e-4)
        settings = SETTINGS.changed(attack={"restarts": 0, "search_every": 0}, limits={"max_subproblems": 50})
        assert verdict(model, x, settings).status != "verified"


def test_a_tie_ends_when_intervals_are_too_narrow_to_split() -> None:
    # Both classes read the same number, by neurons of their own.
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Tanh(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[2].weight.copy_(torch.eye(2))
    found = verify(model, torch.ones(1, 1), torch.zeros(1, dtype=torch.long), 0.005, low=None, high=None)[0]
    assert (found.status, found.reason) == ("unknown", "gap")
    assert found.subproblems > 0


# --- bounds of split subproblems


@torch.no_grad()
def images_of(model: nn.Sequential, x: Tensor) -> Images:
    """One image in double precision, with sound bounds as its proof."""
    network = trace(model.double(), (2,))
    box = Box.linf(x[None].double(), EPS, low=None, high=None)
    prepared = prepare(network, box, sound_for=torch.float64)
    layout = Layout.of(network, network.output)
    bounds = NeuronBounds.of(layout, prepared.intervals, prepared.rounding, prepared.errors)
    ends = (box.lower, box.upper)
    return Images(bounds, torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long), ends, ends, bounds)


def whole(images: Images, splits: int) -> Subproblems:
    zero = torch.zeros(1, dtype=torch.long)
    none, flat = torch.full((1, splits), images.layout.size), torch.zeros(1, splits, dtype=torch.float64)
    start = images.whole(zero, zero + 1).start()
    return Subproblems(zero, zero + 1, torch.tensor([-torch.inf]).double(), start, zero, none, flat, flat, flat)


def neurons_at(images: Images, points: Tensor) -> Tensor:
    """The pre-activations of all neurons at points, on the flat axis: (points, size)."""
    layout, values = images.layout, evaluate(images.layout.network, points)
    return layout.flat({i: values[layout.network.nodes[i].inputs[0]] for i in layout.places})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_bounds_of_halves_hold_at_every_point_in_them_and_the_halves_cover_the_box(kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for seed in (0, 10):
            model, x = mixed(seed) if kind == "mixed" else small(kind, seed), middle(seed)
            images = images_of(model, x)
            points = grid(x)[::97]
            z, out = neurons_at(images, points), model(points)
            margin = out[:, 0] - out[:, 1]
            sub, step = whole(images, 6), Step(images, VerifySettings(branch=BranchSettings(iterations=1)))
            for depth in range(6):  # both halves of everything: 64 subproblems in the end
                halves = step.decide(sub)
                sub = replace(
                    halves,
                    bound=torch.full_like(halves.bound, -torch.inf),
                    alpha=torch.rand(halves.alpha.shape, generator=generator, dtype=torch.float64),
                    beta=torch.rand(halves.beta.shape, generator=generator, dtype=torch.float64) * (halves.sign != 0),
                )
                found, _ = images.lower_bound(sub).value(sub.alpha, sub.beta)
                proved = images.proved_bounds(replace(sub, bound=found), 512)
                side = z[:, sub.neuron[:, : depth + 1]] - sub.point[:, : depth + 1]
                inside = (side * sub.sign[:, : depth + 1] >= 0).all(2)  # (points, subproblems)
                assert bool(inside.any(1).all())
                assert bool((found <= torch.where(inside, margin[:, None], torch.inf).amin(0) + 1e-9).all())
                assert bool((proved <= found).all())
                assert bool(torch.isfinite(proved).all())


def test_a_neuron_is_split_again_inside_what_is_left_of_its_interval() -> None:
    model = nn.Sequential(linear(2, 1, 0, 2.0), nn.Tanh(), linear(1, 2, 1))
    with torch.no_grad():
        images = images_of(model, middle(0))
        step, sub = Step(images, VerifySettings(branch=BranchSettings(iterations=1))), whole(images, 3)
        for _ in range(3):
            before = images.lower_bound(sub)
            sub = step.decide(sub)
            after = images.lower_bound(sub)
            lower, upper = before.lower.repeat(2, 1), before.upper.repeat(2, 1)
            assert bool(((after.lower > lower) | (after.upper < upper)).all())
            assert bool(((after.upper - after.lower) < 0.6 * (upper - lower)).all())
    assert sub.neuron.tolist() == [[0, 0, 0]] * 8


def test_the_bound_and_what_lines_cost_add_up_to_the_margin_where_the_bound_is_attained() -> None:
    for kind in KINDS:
        images = images_of(small(kind, 20), middle(20))
        with torch.no_grad():
            sub = whole(images, 0)
            function = images.lower_bound(sub)
            coefficient, cost = costs(function, sub.alpha, sub.beta)
            bound, rows = function.value(sub.alpha, sub.beta)
            there = images.margin_at(sub.image, images.corner(sub.image, rows))
        assert torch.equal(coefficient, function.coefficients(sub.alpha, sub.beta))
        assert float(bound + cost.sum()) == pytest.approx(float(there), abs=1e-9)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, 1e30])
def test_numbers_that_are_too_large_or_none_are_never_verified(broken: float) -> None:
    model, x = small("tanh", 0), middle(0)
    with torch.no_grad():
        model[2].weight[0, 0] = broken
    assert verdict(model, x).status != "verified"
    images = images_of(small("tanh", 0), x)
    with torch.no_grad():
        sub = replace(whole(images, 1), sign=torch.ones(1, 1).double(), point=torch.full((1, 1), torch.nan).double())
        sub = replace(sub, neuron=torch.zeros(1, 1, dtype=torch.long), bound=torch.ones(1).double())
        proof = images.proof
        assert proof is not None
        function = LowerBound(proof, sub.image, images.margins(sub.image, sub.target), sub.neuron, sub.sign, sub.point)
        assert float(function.sound_value(sub.alpha, sub.beta)) == -torch.inf


@pytest.mark.long
def test_planes_in_all_layers_raise_margins_before_branching_and_never_above_sampled_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(7)
    layers = [nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.Tanh(), nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, 3))
    for part in model.parameters():
        part.data = 2 * torch.randn(part.shape, generator=generator) / max(part[0].numel(), 4) ** 0.5
    x, eps = torch.rand(12, 2, 9, 9, generator=generator), 0.03
    y = model(x).argmax(1)
    settings = NO_SPLITS.changed(attack={"restarts": 0})
    now = verify(model, x, y, eps, settings=settings)
    monkeypatch.setattr(stages, "at_one_place", lambda job, left, intervals, shared, sub, late: sub)
    before = verify(model, x, y, eps, settings=settings)
    gains = [a.margin - b.margin for a, b in zip(now, before, strict=True)]
    assert min(gains) >= 0
    assert max(gains) > 0.05
    noise = torch.rand(400, *x.shape, generator=generator).mul(2).sub(1)
    noise[::2] = noise[::2].sign()
    for point in (x + eps * noise).clamp(0, 1):
        logits = model(point).detach()
        true = logits.gather(1, y[:, None]).squeeze(1)
        margin = (true - logits.scatter(1, y[:, None], -torch.inf).amax(1)).tolist()
        assert all(v.margin <= m + 1e-5 for v, m in zip(now, margin, strict=True) if v.status != "falsified")


ODD = {
    "a curve on the input": lambda: [
        *(nn.Tanh(), nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)),
    ],
    "a curve at the output": lambda: [
        *(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2), nn.Sigmoid()),
    ],
    "a matrix of curves": lambda: [
        *(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 12), nn.Unflatten(1, (2, 6)), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2)),
    ],
}


@pytest.mark.parametrize("which", ODD)
def test_curves_in_odd_places_go_through_all_stages_and_no_sample_contradicts_them(which: str) -> None:
    chosen = VerifySettings(Limits(max_subproblems=8)).changed(attack={"restarts": 0}, optimise={"iterations": 1})
    seen = set()
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        model = nn.Sequential(*ODD[which]())
        for part in model.parameters():
            part.data = 2 * torch.randn(part.shape, generator=generator)
        x = torch.rand(4, 3, generator=generator)
        y = model(x).argmax(1)
        share = 2 * torch.rand(1000, 1, 3, generator=generator) - 1
        share[::2] = share[::2].sign()
        for eps in (0.05, 0.2):
            points = (x + eps * share).clamp(0, 1)
            broken = (model(points.flatten(0, 1)).argmax(1).view(1000, 4) != y).any(0).tolist()
            for verdict, is_broken in zip(verify(model, x, y, eps, settings=chosen), broken, strict=True):
                assert verdict.status in ("verified", "falsified", "unknown"), verdict.reason
                assert not (is_broken and verdict.status == "verified")
                seen |= {verdict.status, verdict.method}
    assert seen >= {"verified", "falsified", "alpha-crown", "bab"}
