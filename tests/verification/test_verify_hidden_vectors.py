"""Hidden neurons of fully connected networks, branched on in all that lies before them: sound, and worth it."""

from __future__ import annotations

import copy
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from exact_fractions import fractions, outputs_at
from exact_milp import least
from lipgraft.bounds.crown import Prepared, prepare
from lipgraft.bounds.memory import never
from lipgraft.bounds.prefix_network import PrefixNetwork
from lipgraft.box import Box
from lipgraft.network import Network, evaluate, kinks_at_zero, trace
from lipgraft.verification import VerifySettings, verify
from lipgraft.verification.branch_and_bound.hidden import MANY, HiddenNeurons, NeuronProblem
from lipgraft.verification.job import Job
from lipgraft.verification.stages import _shared, alpha_crown, crown
from window_networks import activation

INPUTS, EPS = 5, 0.15
EAGER = VerifySettings().changed(  # without planes, which would take most of the time
    attack={"restarts": 0, "search_every": 0}, branch={"neuron_after": 0, "neuron_splits": 4, "plane_steps": 0}
)


def module(kind: str, seed: int, hidden: int = 12, layers: int = 3) -> nn.Sequential:
    """Fully connected layers behind a flattened image, with an activation of this kind between any two."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [INPUTS, *([hidden] * layers), 3]
    parts: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        linear = nn.Linear(before, after)
        with torch.no_grad():
            linear.weight.copy_(torch.randn(linear.weight.shape, generator=generator) * (2 / before) ** 0.5)
            linear.bias.copy_(torch.randn(linear.bias.shape, generator=generator) / 8)
        parts += [linear, activation(kind, (after,), generator)]
    return nn.Sequential(*parts[:-1])


def network(kind: str, seed: int) -> Network:
    return kinks_at_zero(trace(module(kind, seed).double(), (1, 1, INPUTS)).to())


def images(count: int, seed: int) -> Tensor:
    return torch.rand(count, 1, 1, INPUTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets(net: Network) -> list[int]:
    """The layers behind the first one that activations read."""
    return [act.inputs[0] for _, act in net.activations()][1:]


def problem(
    net: Network, target: int, prepared: Prepared, image: Tensor, neuron: Tensor, side: float
) -> tuple[NeuronProblem, NeuronProblem]:
    """Of these neurons: searched and proved in double precision; searched in single precision, proved in double."""
    seen, single = PrefixNetwork.of(net, target), PrefixNetwork.of(net.to(dtype=torch.float32), target)
    assert seen is not None
    assert single is not None
    proof = seen.bounds(prepared.intervals, image, neuron, prepared.rounding, prepared.errors)
    rows = seen.rows(neuron, torch.full((len(neuron),), side, dtype=torch.float64))
    searched = seen.bounds(prepared.intervals, image, neuron)
    return (
        NeuronProblem(searched, None, rows),
        NeuronProblem(proof.searched(single.layout, torch.float32), proof, rows.float()),
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["relu", "leaky", "grafted"])
@pytest.mark.parametrize("layer", [0, 1])
def test_bounds_grow_with_splits_up_to_the_exact_value(kind: str, layer: int) -> None:
    net = network(kind, 0)
    box = Box.linf(images(1, 1), EPS)
    prepared = prepare(net, box, sound_for=torch.float32)
    target = targets(net)[layer]
    before = Network(net.nodes[: target + 1], target)
    neuron = torch.arange(0, 12, 3)
    image = torch.zeros_like(neuron)
    for side in (1.0, -1.0):
        plain, sound = problem(net, target, prepared, image, neuron, side)
        rows = plain.rows[:, 0, 0].numpy()
        best = torch.from_numpy(least(before, box.lower[0].flatten(), box.upper[0].flatten(), rows))
        found = [plain.branched(splits, never) for splits in (0, 4, 200)]
        for bound in (*found, sound.branched(24, never)):
            assert bool((bound <= best + 1e-7).all())
        assert bool((found[0] <= found[1] + 1e-9).all() & (found[1] <= found[2] + 1e-9).all())
        decided = found[2] < 0  # the others have the neuron's sign, and are split no further
        torch.testing.assert_close(found[2][decided], best[decided], rtol=0, atol=2e-2)


def test_rounding_never_lifts_a_proved_bound_above_a_true_value() -> None:
    wrong = {"searched": 0, "proved": 0}
    for seed in range(8):
        model = module("relu", seed, hidden=8, layers=2)
        first, second = model[1], model[3]
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        with torch.no_grad():  # pairs of neurons that are nearly each other's opposite, and large
            first.weight[1::2], first.bias[1::2] = first.weight[::2], first.bias[::2] * (1 + 2.0**-18)
            second.weight.mul_(2.0**20)
            second.weight[:, 1::2] = -second.weight[:, ::2]
        net = kinks_at_zero(trace(copy.deepcopy(model).double(), (1, 1, INPUTS)).to())
        box = Box.linf(images(1, seed).float().double(), 2.0**-5)
        prepared = prepare(net, box, sound_for=torch.float32)
        neuron = torch.arange(8)
        _, sound = problem(net, targets(net)[0], prepared, torch.zeros_like(neuron), neuron, 1.0)
        bounds = {"proved": sound.branched(6, never)}
        bounds["searched"] = NeuronProblem(sound.bounds, None, sound.rows).branched(6, never)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(6):
            corner = torch.where(torch.rand(1, 1, INPUTS, generator=generator) < 0.5, box.lower[0], box.upper[0])
            true = outputs_at(model[:4], fractions(corner)).reshape(-1)
            for name, bound in bounds.items():
                wrong[name] += sum(Fraction(float(b)) > t for b, t in zip(bound, true, strict=True))
    assert wrong["proved"] == 0
    assert wrong["searched"] > 0  # so these networks do fool a bound that does not look at rounding


@pytest.mark.long
@pytest.mark.parametrize(("arithmetic", "speaks_of"), [("sound", "real"), ("sound", "float32"), ("fast", "real")])
def test_verdicts_are_those_without_and_need_fewer_subproblems(arithmetic: str, speaks_of: str) -> None:
    model = module("relu", 2, hidden=24, layers=4)
    x = images(8, 3).float()
    y = model(x).argmax(1)
    settings = EAGER.changed(arithmetic=arithmetic, speaks_of=speaks_of)
    plain = settings.changed(branch={"neuron_splits": 0})
    with_, without = (verify(model, x, y, 0.1, settings=s) for s in (settings, plain))
    assert [v.status for v in with_] == [v.status for v in without]
    proved = [k for k, v in enumerate(without) if v.status == "verified" and v.method == "bab"]
    assert proved
    assert sum(with_[k].subproblems for k in proved) < sum(without[k].subproblems for k in proved) / 2


def test_layers_without_an_unstable_neuron_are_left_alone() -> None:
    model = module("relu", 3, hidden=24, layers=4)
    stable, reader = model[-3], model[-1]
    assert isinstance(stable, nn.Linear)
    assert isinstance(reader, nn.Linear)
    with torch.no_grad():  # all of its neurons are active, and what reads them takes the shift back
        stable.bias.add_(8.0)
        reader.bias.sub_(8.0 * reader.weight.sum(1))
    x = images(6, 3).float()
    job = Job.of(model, x, model(x).argmax(1), 2 * EPS, 0.0, 1.0, EAGER)
    with torch.no_grad():
        opened = alpha_crown(job, crown(job, list(range(6))).rest[0]).rest[0].images
        assert opened.proof is not None
        lower, upper = opened.proof.layout.pieces(opened.proof.lower), opened.proof.layout.pieces(opened.proof.upper)
        last = max(lower)
        assert not bool(((lower[last] < 0) & (upper[last] > 0)).any())
        before = (opened.proof.upper - opened.proof.lower).sum()
        HiddenNeurons(job).tighten(opened, torch.arange(len(opened)), 8, never, len(opened))
        assert (opened.proof.upper - opened.proof.lower).sum() < before


def test_what_lies_behind_a_convolution_or_is_large_is_not_branched_on_by_itself() -> None:
    behind = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 2))
    large = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 3000), nn.ReLU(), nn.Linear(3000, 1000), nn.ReLU(), nn.Linear(1000, 2)
    )
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    for model in (behind, large, smooth):
        net = trace(model, (1, 6, 6))
        assert PrefixNetwork.of(net, [act.inputs[0] for _, act in net.activations()][1]) is None


class Block(nn.Module):
    """Convolutions around a sum: the neurons behind it have no window network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second, self.third = nn.Conv2d(1, 3, 2), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 2)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        out: Tensor = self.last(self.third(self.second(y).relu() + y).relu().flatten(1))
        return out


@pytest.mark.long
def test_bounds_of_convolutions_behind_a_sum_grow_with_splits_and_hold_every_sampled_value() -> None:
    net = trace(Block().double(), (1, 4, 4)).to()
    generator = torch.Generator().manual_seed(1)
    box = Box.linf(torch.rand(1, 1, 4, 4, generator=generator, dtype=torch.float64), 0.3)
    prepared = prepare(net, box, sound_for=torch.float32)
    target = targets(net)[1]
    assert len(net.nodes[target].shape) == 3
    neuron = torch.arange(12)
    corners = torch.where(torch.rand(4096, 1, 4, 4, generator=generator) < 0.5, box.lower, box.upper)
    values = evaluate(net, corners)[target].flatten(1)
    for side in (1.0, -1.0):
        plain, sound = problem(net, target, prepared, torch.zeros_like(neuron), neuron, side)
        least_seen = (side * values).amin(0)
        found = [plain.branched(splits, never) for splits in (0, 8, 100)]
        for bound in (*found, sound.branched(24, never)):
            assert bool((bound <= least_seen).all())
        assert bool((found[0] <= found[1] + 1e-9).all() & (found[1] <= found[2] + 1e-9).all())
        assert bool((found[2] > found[0] + 0.01).any())


@pytest.mark.parametrize("padding", [0, 1], ids=["a window", "no window"])
def test_convolutions_in_a_row_before_the_first_activation_are_not_branched_on(padding: int) -> None:
    torch.manual_seed(4)
    first = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Conv2d(2, 2, 2, padding=padding), nn.ReLU())
    width = int(first(torch.zeros(1, 1, 5, 5)).numel())
    model = nn.Sequential(*first, nn.Flatten(), nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.rand(3, 1, 5, 5)
    y = model(x).argmax(1)
    assert not HiddenNeurons(Job.of(model, x, y, 0.3, 0.0, 1.0, EAGER))
    hidden, plain = (verify(model, x, y, 0.3, settings=s) for s in (EAGER, EAGER.changed(branch={"neuron_splits": 0})))
    assert [v.status for v in hidden] == [v.status for v in plain]


@pytest.mark.parametrize(("count", "open_images", "gains"), [(2, 2, True), (6, 6, False), (2, MANY + 1, False)])
def test_convolutions_behind_a_sum_are_branched_on_for_a_few_images_when_not_many_are_open(
    count: int, open_images: int, gains: bool
) -> None:
    model = Block()
    with torch.no_grad():
        bias = model.third.bias
        assert bias is not None
        bias.sub_(model.third(torch.ones(1, 3, 3, 3) / 3).mean((0, 2, 3)))  # around zero, so that neurons are unstable
    x = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    job = Job.of(model, x, model(x).argmax(1), 0.5, 0.0, 1.0, EAGER)
    left = crown(job, list(range(count))).rest[0]
    open_ = _shared(job, job.index(left.images), left.intervals, left)
    assert len(open_) == count
    place = list(open_.layout.places.values())[2]
    before = (open_.bounds.upper - open_.bounds.lower)[:, place].clone()
    assert bool(((open_.bounds.lower < 0) & (open_.bounds.upper > 0))[:, place].any())
    HiddenNeurons(job).tighten(open_, torch.arange(count), 8, never, open_images)
    after = (open_.bounds.upper - open_.bounds.lower)[:, place]
    assert bool((after <= before).all())
    assert bool((after < before - 1e-3).any()) == gains
