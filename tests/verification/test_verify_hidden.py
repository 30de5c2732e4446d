"""Branch and bound of hidden neurons: sound against exact answers, better with every split, the same verdicts."""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exact_fractions import fractions, outputs_at
from exact_milp import least
from lipgraft.bounds.crown import Prepared, prepare
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.memory import never
from lipgraft.bounds.refine import refine
from lipgraft.bounds.window_network import WindowNetwork
from lipgraft.box import Box
from lipgraft.network import Activation, Network, evaluate, trace
from lipgraft.verification import Verdict, VerifySettings, stages, verify, verify_stream
from lipgraft.verification.branch_and_bound import hidden
from lipgraft.verification.branch_and_bound.branching import Step
from lipgraft.verification.branch_and_bound.focus import MOST
from lipgraft.verification.branch_and_bound.hidden import HiddenNeurons, NeuronProblem
from lipgraft.verification.branch_and_bound.pool import Pool
from lipgraft.verification.branch_and_bound.search import BranchAndBound
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job
from lipgraft.verification.stages import alpha_crown, crown
from window_networks import SIZE, boxes, everyone, module, network, seen, targets

KINDS = ["relu", "leaky", "grafted"]
EASY = 0.03  # the radius at which a few subproblems prove an image
EAGER = VerifySettings().changed(  # without planes, which would take most of the time
    attack={"restarts": 0, "search_every": 0}, branch={"neuron_after": 0, "neuron_splits": 4, "plane_steps": 0}
)


def problem(window: WindowNetwork, prepared: Prepared, image: Tensor, neuron: Tensor, side: float) -> NeuronProblem:
    """Without the proof in double precision: the numbers here are double already."""
    rows = window.rows(neuron, torch.full((len(neuron),), side, dtype=torch.float64))
    return NeuronProblem(window.bounds(prepared.intervals, image, neuron), None, rows)


def sound_problem(
    window: WindowNetwork, prepared: Prepared, image: Tensor, neuron: Tensor, side: float
) -> NeuronProblem:
    """Searched in single precision, proved in double."""
    proof = window.bounds(prepared.intervals, image, neuron, prepared.rounding, prepared.errors)
    single = WindowNetwork.of(window.whole.to(dtype=torch.float32), window.target)
    assert single is not None
    rows = window.rows(neuron, torch.full((len(neuron),), side, dtype=torch.float64))
    return NeuronProblem(proof.searched(single.layout, torch.float32), proof, rows.float())


def exact(window: WindowNetwork, prepared: Prepared, image: Tensor, neuron: Tensor, side: float) -> Tensor:
    """The least value of side * neuron, by a mixed-integer program over its window."""
    bounds = window.bounds(prepared.intervals, image, neuron)
    rows = window.rows(neuron, torch.full((len(neuron),), side, dtype=torch.float64))[:, 0, 0].numpy()
    out: list[float] = []
    for k in range(len(neuron)):
        nodes = list(window.network.nodes)
        for local in window.layout.places:
            node = bounds.activation(local, torch.tensor([k]))
            assert isinstance(node, Activation)
            assert node.graft is not None
            nodes[local] = replace(node, graft=type(node.graft)(*(t[0, 0, 0] for t in vars(node.graft).values())))
        net = Network(tuple(nodes), window.network.output)
        out.append(float(least(net, bounds.root[0][k], bounds.root[1][k], rows[k : k + 1])[0]))
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", [0, 1])
def test_bounds_of_hidden_neurons_grow_with_splits_up_to_the_exact_value(kind: str, layer: int) -> None:
    net = network(kind, seed=3)
    prepared = prepare(net, boxes(1, 0.03), sound_for=torch.float32)
    window = seen(net, targets(net)[layer])
    image, neuron = everyone(net, targets(net)[layer], 1)
    image, neuron = image[5::101], neuron[5::101]
    for side in (1.0, -1.0):
        best = exact(window, prepared, image, neuron, side)
        found = [problem(window, prepared, image, neuron, side).branched(splits, never) for splits in (0, 4, 200)]
        proved = sound_problem(window, prepared, image, neuron, side).branched(24, never)
        for bound in (*found, proved):
            assert bool((bound <= best + 1e-7).all())
        assert bool((found[0] <= found[1] + 1e-9).all())
        assert bool((found[1] <= found[2] + 1e-9).all())
        # What has the neuron's sign is not split further; of the rest, every neuron in the window can be split.
        decided = found[2] < 0
        torch.testing.assert_close(found[2][decided], best[decided], rtol=0, atol=1e-2)


def cancelling(seed: int) -> nn.Sequential:
    """Channels in pairs that are nearly each other's opposite, and large: what is left of them is mostly rounding."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 6, 2), nn.ReLU(), nn.Conv2d(6, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    first, second = model[0], model[2]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(second, nn.Conv2d)
    with torch.no_grad():
        for layer, size in ((first, 1.0), (second, 2.0**20)):
            assert layer.bias is not None
            layer.weight.copy_(size * torch.randn(layer.weight.shape, generator=generator))
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator) / 4)
        first.weight[1::2] = first.weight[::2]
        first.bias[1::2] = first.bias[::2] * (1 + 2.0**-18)  # type: ignore[index]
        second.weight[:, 1::2] = -second.weight[:, ::2]
    return model


@pytest.mark.long
def test_rounding_never_lifts_a_proved_bound_of_a_hidden_neuron_above_a_true_value() -> None:
    wrong = {"searched": 0, "proved": 0}
    for seed in range(6):
        model = cancelling(seed)
        x = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
        box = Box.linf(x.double(), 2.0**-5)
        net = trace(copy.deepcopy(model).double(), (1, 6, 6)).to()
        prepared = prepare(net, box, sound_for=torch.float32)
        target = targets(net)[0]
        window = seen(net, target)
        image, neuron = everyone(net, target, 1)
        problem_ = sound_problem(window, prepared, image, neuron, 1.0)
        proved = problem_.branched(6, never)
        searched = NeuronProblem(problem_.bounds, None, problem_.rows).branched(6, never)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(4):
            corner = torch.where(torch.rand(x[0].shape, generator=generator) < 0.5, box.lower[0], box.upper[0])
            true = outputs_at(model[:3], fractions(corner)).reshape(-1)
            for name, bound in (("proved", proved), ("searched", searched)):
                wrong[name] += sum(Fraction(float(b)) > t for b, t in zip(bound, true, strict=True))
    assert wrong["proved"] == 0
    assert wrong["searched"] > 0  # so these networks do fool a bound that does not look at rounding


def images(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    model = module("grafted", seed).float()
    x = torch.rand(6, 2, SIZE, SIZE, generator=torch.Generator().manual_seed(100 + seed))
    return model, x, model(x).argmax(1)


def test_tightened_bounds_are_tighter_and_hold_every_sampled_value() -> None:
    model, x, y = images(0)
    job = Job.of(model, x, y, 0.05, 0.0, 1.0, EAGER)
    with torch.no_grad():
        left = crown(job, list(range(len(x)))).rest[0]
        opened = alpha_crown(job, left).rest[0].images
        assert opened.proof is not None
        before = [end.clone() for end in (opened.proof.lower, opened.proof.upper)]
        HiddenNeurons(job).tighten(opened, torch.arange(len(opened)), 8, never, len(opened))
    after = opened.proof.lower, opened.proof.upper
    assert bool((after[0] >= before[0]).all() & (after[1] <= before[1]).all())
    assert float((after[1] - after[0]).mean()) < 0.99 * float((before[1] - before[0]).mean())
    assert torch.equal(opened.bounds.lower.double(), after[0])
    generator = torch.Generator().manual_seed(5)
    assert job.proof is not None
    for _ in range(50):
        share = torch.rand(len(opened), *x.shape[1:], generator=generator, dtype=torch.float64).round()
        low, high = (end[opened.number] for end in (job.exact_box.lower, job.exact_box.upper))
        values = evaluate(job.proof, low + share * (high - low))
        flat = opened.layout.flat({i: values[opened.layout.activation(i).inputs[0]] for i in opened.layout.places})
        assert bool(((flat >= after[0][:, :-1]) & (flat <= after[1][:, :-1])).all())


@pytest.mark.long
@pytest.mark.parametrize(("arithmetic", "speaks_of"), [("sound", "real"), ("sound", "float32"), ("fast", "real")])
def test_verdicts_do_not_contradict_those_without_and_need_fewer_subproblems(arithmetic: str, speaks_of: str) -> None:
    model, x, y = images(1)
    settings = EAGER.changed(arithmetic=arithmetic, speaks_of=speaks_of, limits={"max_subproblems": 100})
    plain = settings.changed(branch={"neuron_splits": 0})
    with_, without = (verify(model, x, y, 0.04, settings=s) for s in (settings, plain))
    decided = {"verified", "falsified"}
    for a, b in zip(with_, without, strict=True):
        assert a.status == b.status or not {a.status, b.status} <= decided
    proved = [k for k in range(len(x)) if without[k].status == "verified" and without[k].method == "bab"]
    assert proved
    assert all(with_[k].status == "verified" for k in proved)
    assert sum(with_[k].subproblems for k in proved) < sum(without[k].subproblems for k in proved)
    assert sum(v.status == "verified" for v in with_) >= sum(v.status == "verified" for v in without)


@pytest.mark.parametrize("certificates", [False, True])
def test_in_convolutional_networks_neurons_are_refined_when_an_image_proves_hard(
    certificates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate has no room for what hidden neurons get later: then they are refined before branching."""
    model, x, y = images(1)
    asked: list[str] = []
    for room in (stages, hidden):

        def counted(*args: Any, name: str = room.__name__.rpartition(".")[2], **options: Any) -> list[Interval]:
            asked.append(name)
            return refine(*args, **options)

        monkeypatch.setattr(room, "refine", counted)
    settings = EAGER.changed(optimise={"refine": "all"})

    def rooms(eps: float, after: int, most: int | None) -> set[str]:
        asked.clear()
        chosen = settings.changed(branch={"neuron_after": after}, limits={"max_subproblems": most})
        verdicts = dict(verify_stream(model, x, y, eps, settings=chosen, certificates=certificates))
        assert any(verdict.subproblems for verdict in verdicts.values())
        return set(asked)

    assert rooms(0.04, 0, 20) == {"stages" if certificates else "hidden"}
    assert rooms(0.04, 20, 20) == {"stages"}  # no image would get there
    assert rooms(EASY, 10**6, None) == ({"stages"} if certificates else set())


def test_the_time_limit_holds_while_neurons_are_branched_on() -> None:
    model, x, y = images(2)
    job = Job.of(model, x[:2], y[:2], 0.05, 0.0, 1.0, EAGER)
    net = network("grafted", 2)
    prepared = prepare(net, boxes(1, 0.05))
    window = seen(net, targets(net)[0])
    image, neuron = everyone(net, targets(net)[0], 1)
    asked: list[int] = []

    def late() -> bool:
        asked.append(1)
        return len(asked) > 3

    cut_short = problem(window, prepared, image, neuron, 1.0).branched(50, late)
    three = problem(window, prepared, image, neuron, 1.0).branched(3, never)
    assert torch.equal(cut_short, three)
    assert bool(HiddenNeurons(job))


@pytest.mark.long
def test_without_memory_for_hidden_neurons_the_bounds_stay_and_other_failures_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x, y = images(1)
    settings = EAGER.changed(limits={"max_subproblems": 60})
    plain = verify(model, x, y, 0.04, settings=settings.changed(branch={"neuron_splits": 0}))

    def fails(error: RuntimeError) -> list[Verdict]:
        def tighten(*_: object) -> None:
            raise error

        monkeypatch.setattr(HiddenNeurons, "tighten", tighten)
        return verify(model, x, y, 0.04, settings=settings)

    assert [v.status for v in fails(torch.OutOfMemoryError("none left"))] == [v.status for v in plain]
    broken = [k for k, v in enumerate(fails(RuntimeError("a wrong shape"))) if v.status == "error"]
    assert broken == [k for k, v in enumerate(plain) if v.method == "bab"]


def test_what_is_proved_leaves_the_pool_wherever_it_is_kept() -> None:
    count = 12
    zero = torch.zeros(count, dtype=torch.int64)
    rows = Subproblems(
        torch.arange(count) % 3,
        zero,
        -torch.arange(1.0, count + 1),
        torch.zeros(count, 2),
        zero,
        torch.full((count, 1), 2),
        torch.zeros(count, 1),
        torch.zeros(count, 1),
        torch.zeros(count, 1),
    )
    pool = Pool(rows.at(slice(0, 0)), 2, limit=6 * rows.packed().row_bytes(), spill_limit=2**20)
    pool.push(rows)
    assert pool.spilled
    pool.remove(lambda packed: packed.bound.abs() % 2 == 0)
    assert pool.counts(3).tolist() == [2, 2, 2]
    pool.remove(lambda packed: packed.image == 1)
    assert pool.counts(3).tolist() == [2, 0, 2]


def opened(settings: VerifySettings) -> BranchAndBound:
    model, x, y = images(1)
    job = Job.of(model, x, y, 0.04, 0.0, 1.0, settings)
    with torch.no_grad():
        left = crown(job, list(range(len(x)))).rest[0]
        return BranchAndBound(job, alpha_crown(job, left).rest[0])


def test_an_image_that_looks_hopeless_is_not_left_behind_before_its_trial_is_over() -> None:
    search = opened(EAGER.changed(branch={"neuron_after": 300}))
    cost = search._cost()
    open_ = search.pool.worst_bounds(len(search.number)) < 0
    assert cost[open_].tolist() == pytest.approx([1024.0] * int(open_.sum()))  # none has come any further
    shares = search.focus.shares(cost, search.stopped, search.pool, 1000)
    assert shares[open_].tolist() == [MOST] * int(open_.sum())


@pytest.mark.long
@pytest.mark.parametrize("arithmetic", ["sound", "fast"])
def test_open_subproblems_are_bounded_anew_when_their_neurons_are(arithmetic: str) -> None:
    search = opened(EAGER.changed(arithmetic=arithmetic))
    before, count = search.pool.worst_bounds(len(search.number)), len(search.pool)
    with torch.no_grad():
        search._take_turns()
        search._tighten()
    after = search.pool.worst_bounds(len(search.number))
    assert bool((after >= before).all())
    assert float((after - before).mean()) > 0.05 * float(-before.mean())
    assert len(search.pool) < count  # some are proved by it
    floors = search.floor.tolist()
    gone = [place for place, left in enumerate(search.pool.counts(len(search.number)).tolist()) if left == 0]
    assert all(0 < floors[place] < torch.inf for place in gone)


def test_subproblems_are_not_bounded_anew_when_the_time_is_over() -> None:
    search = opened(EAGER)
    everyone_, before = torch.arange(len(search.number)), search.pool.slots.bound.clone()
    with torch.no_grad():
        search._bound_again(everyone_, lambda: True)
        assert torch.equal(search.pool.slots.bound, before)
        search._bound_again(everyone_, never)
    assert bool((search.pool.slots.bound > before).any())


def test_no_subproblem_is_lost_when_bounding_anew_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    search, calls = opened(EAGER), []

    def bounded(_: Step, sub: Subproblems) -> Subproblems:
        calls.append(len(sub))
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(Step, "bounded", bounded)
    monkeypatch.setattr(search.hidden, "tighten", lambda *_: None)
    count = len(search.pool)
    with torch.no_grad():
        search._take_turns()
        search._tighten()
    assert calls
    assert len(search.pool) == count
    assert not any(search.stopped)
