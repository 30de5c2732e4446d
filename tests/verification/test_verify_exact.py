"""The verifier against exact answers: a MILP (SciPy's HiGHS) and the enumeration of activation patterns."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from exact_milp import double, exact_margin, grafted, line
from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.box import Box
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.network import Activation, Network, evaluate
from lipgraft.verification import AttackSettings, BranchSettings, OptimiseSettings, Verdict, VerifySettings, verify
from lipgraft.verification.branch_and_bound import lifting
from lipgraft.verification.branch_and_bound.planes import Group, fit
from lipgraft.verification.branch_and_bound.subproblems import Subproblems

# Little optimisation, no attack and no search, so that most of the work is left to branching and to the leaves.
BARE = VerifySettings(
    attack=AttackSettings(restarts=0, search_every=0),
    optimise=OptimiseSettings(refine="none", iterations=1),
    branch=BranchSettings(iterations=2),
)
SETTINGS = {
    "bare": BARE,
    "default": VerifySettings(),
    "widest": VerifySettings(
        attack=AttackSettings(restarts=0),
        optimise=OptimiseSettings(refine="none", iterations=0),
        branch=BranchSettings(iterations=1, rule="widest"),
    ),
    "babsr": VerifySettings(
        attack=AttackSettings(restarts=0),
        optimise=OptimiseSettings(refine="all"),
        branch=BranchSettings(iterations=1, rule="babsr", batch=8),
    ),
}
CLEAR = 1e-4  # a margin closer to zero than this may be rounded to either side


class Residual(nn.Module):
    """x -> second(act(first(x))) + skip(x), then an activation."""

    def __init__(self, width: int, graft: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, width)
        self.skip, self.out = nn.Linear(4, width), nn.Linear(width, 3)
        self.inner, self.outer = _act(width, graft, generator), _act(width, graft, generator)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.outer(self.second(self.inner(self.first(x))) + self.skip(x)))
        return out


def _act(width: int, graft: bool, generator: torch.Generator) -> nn.Module:
    if not graft:
        return nn.ReLU()
    mask = torch.rand(width, generator=generator) < 0.4
    return GraftedActivation(
        nn.ReLU(), mask, torch.rand(width, generator=generator), torch.randn(width, generator=generator) / 4
    )


def network(kind: str, graft: bool, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    if kind == "residual":
        model: nn.Module = Residual(5, graft, generator)
    elif kind == "wide":
        model = nn.Sequential(nn.Linear(4, 10), _act(10, graft, generator), nn.Linear(10, 3))
    elif kind == "leaky":
        model = nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(0.2), nn.Linear(5, 4), nn.LeakyReLU(0.1), nn.Linear(4, 3))
    else:
        layers = [
            nn.Linear(4, 6),
            _act(6, graft, generator),
            nn.Linear(6, 5),
            _act(5, graft, generator),
            nn.Linear(5, 3),
        ]
        model = nn.Sequential(*layers)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2:
                p.copy_(torch.randn(p.shape, generator=generator) * 1.4 / p.shape[1] ** 0.5)
            elif name.endswith("bias"):
                p.copy_(torch.randn(p.shape, generator=generator) / 3)
    return model


def images(model: nn.Module, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points with the model's own classes, and radii around those at which a linear model's class would change."""
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.rand(count, 4, generator=generator).requires_grad_()
    logits = model(x)
    best = logits.topk(2).values
    margin = best[:, 0] - best[:, 1]
    (slope,) = torch.autograd.grad(margin.sum(), x)
    radius = margin.detach() / slope.abs().sum(1).clamp(min=1e-3)
    scale = 0.5 + torch.rand(count, generator=generator)
    return x.detach(), logits.argmax(1), (radius * scale).clamp(max=0.7)


def check(verdicts: list[Verdict], exact: list[float], model: nn.Module, x: Tensor, y: Tensor, eps: Tensor) -> int:
    """Every clear case is decided as the exact margin says; returns how many there were."""
    clear = 0
    for k, (verdict, margin) in enumerate(zip(verdicts, exact, strict=True)):
        if abs(margin) < CLEAR:
            continue
        clear += 1
        assert verdict.status == ("verified" if margin > 0 else "falsified"), (k, margin, verdict)
        assert verdict.margin is not None
        if verdict.status == "verified":
            assert 0 < verdict.margin <= margin + 1e-5
        else:
            point = verdict.counterexample
            assert point is not None
            assert int(model(point[None]).argmax()) != int(y[k])
            box = Box.linf(x[k : k + 1], eps[k : k + 1])
            assert bool(((point >= box.lower[0]) & (point <= box.upper[0])).all())
    return clear


KINDS = [("plain", False), ("plain", True), ("residual", False), ("residual", True), ("wide", False), ("leaky", False)]
IMAGES = 22  # of each kind, for each of the settings
CLEAR_ANSWERS = 84  # of these, so many at least have a clear answer


def test_at_least_500_instances_are_compared() -> None:
    assert IMAGES * len(SETTINGS) >= CLEAR_ANSWERS
    assert CLEAR_ANSWERS * len(KINDS) >= 500


@pytest.mark.parametrize(("kind", "graft"), KINDS, ids=[f"{k}{'-grafted' if g else ''}" for k, g in KINDS])
def test_verdicts_agree_with_a_mixed_integer_program_in_both_directions(kind: str, graft: bool) -> None:
    statuses: set[str] = set()
    branched = clear = 0
    for seed, settings in enumerate(SETTINGS.values()):
        model = network(kind, graft, seed)
        x, y, eps = images(model, IMAGES, seed)
        net = double(model)
        exact = [exact_margin(net, x[k], int(y[k]), float(eps[k])) for k in range(len(x))]
        verdicts = verify(model, x, y, eps, settings=settings)
        clear += check(verdicts, exact, model, x, y, eps)
        statuses |= {v.status for v in verdicts}
        branched += sum(v.method == "bab" for v in verdicts)
    assert statuses >= {"verified", "falsified"}
    assert branched > 0
    assert clear >= CLEAR_ANSWERS


EAGER = BARE.changed(branch={"neuron_after": 0, "plane_steps": 16})


@pytest.mark.long
@pytest.mark.parametrize(("kind", "graft"), KINDS[:-1], ids=[f"{k}{'-grafted' if g else ''}" for k, g in KINDS[:-1]])
def test_verdicts_with_planes_agree_with_a_mixed_integer_program(
    kind: str, graft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes: list[int] = []

    def counted(groups: list[Group], *rest: Any) -> list[Group]:
        planes.extend(len(group.reads) for group in groups)
        return fit(groups, *rest)

    def all_neurons(function: LowerBound, _: Subproblems) -> Tensor:
        return function.open[0]

    monkeypatch.setattr(lifting, "fit", counted)
    monkeypatch.setattr(lifting, "costly", all_neurons)
    clear = 0
    for seed in (10, 11):
        model = network(kind, graft, seed)
        x, y, eps = images(model, 20, seed)
        net = double(model)
        exact = [exact_margin(net, x[k], int(y[k]), float(eps[k])) for k in range(len(x))]
        verdicts = verify(model, x, y, eps, settings=EAGER)
        clear += check(verdicts, exact, model, x, y, eps)
    assert clear >= 34
    assert len(planes) >= 3
    assert max(planes) == sum(isinstance(node, Activation) for node in net.nodes)


@pytest.mark.parametrize("graft", [False, True])
def test_verdicts_agree_with_the_enumeration_of_activation_patterns(graft: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 5), _act(5, graft, torch.Generator().manual_seed(3)), nn.Linear(5, 3))
    x, y, eps = images(model, 12, 9)
    eps = eps * 3
    net = double(model)
    exact = [enumerated_margin(net, x[k], int(y[k]), float(eps[k])) for k in range(len(x))]
    assert check(verify(model, x, y, eps, settings=BARE), exact, model, x, y, eps) >= 10
    assert [exact_margin(net, x[k], int(y[k]), float(eps[k])) for k in range(4)] == pytest.approx(exact[:4], abs=1e-6)


def enumerated_margin(net: Network, x: Tensor, y: int, eps: float) -> float:
    """One linear program for each of the 2^5 activation patterns of a network with one hidden layer."""
    hidden = next(i for i, _ in net.activations())
    act = net.nodes[hidden]
    assert isinstance(act, Activation)
    points = torch.cat([torch.zeros(1, 4), torch.eye(4)]).double()
    z = evaluate(net, points)[act.inputs[0]].numpy()
    a, b = (z[1:] - z[0]).T, z[0]
    last = net.nodes[net.output]
    weight, bias = last.weight.numpy(), last.bias.numpy()  # type: ignore[attr-defined]
    box = Box.linf(x[None].double(), eps)
    ends = list(zip(box.lower[0].tolist(), box.upper[0].tolist(), strict=True))
    best = np.inf
    for pattern in product((False, True), repeat=5):
        lines = [line(act, j, 1.0 if on else -1.0) for j, on in enumerate(pattern)]
        slope, shift = np.array([s for s, _ in lines]), np.array([t for _, t in lines])
        side = np.array([0.0 if grafted(act, j) else (-1.0 if on else 1.0) for j, on in enumerate(pattern)])
        rows, limits = side[:, None] * a, -side * b
        for other in {0, 1, 2} - {y}:
            c = weight[y] - weight[other]
            solved = linprog((c * slope) @ a, rows, limits, bounds=ends, method="highs")
            if solved.status == 0:
                best = min(best, solved.fun + c @ (slope * b + shift) + bias[y] - bias[other])
    return float(best)
