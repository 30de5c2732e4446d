"""The verifier's parts: subproblem bounds, pool, branching, leaves, refinement."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft import models
from lipgraft.bounds import AlphaSettings, bound
from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.ascent import Optimised, optimise
from lipgraft.bounds.crown import Prepared, prepare
from lipgraft.bounds.geometry import at_input
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.memory import PRODUCTS, in_halves
from lipgraft.bounds.refine import refine
from lipgraft.bounds.sound import proved
from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.models.layers import Normalise
from lipgraft.network import Activation, Conv, Graft, Linear, Network, Scale, evaluate, trace
from lipgraft.verification import BRANCHING, BranchSettings, VerifySettings, api, stages, verify
from lipgraft.verification.branch_and_bound.branching import Step, branching_named
from lipgraft.verification.branch_and_bound.counterexamples import worst_rows
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.leaves import solve_leaf
from lipgraft.verification.branch_and_bound.pool import Pool
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job, _alike_values
from lipgraft.verification.open_margins import OpenMargins
from lipgraft.verification.stages import Pass, crown
from lipgraft.verification.verdict import Outcome

CLASSES = 3


class Tiny(nn.Module):
    """Normalisation, padding, a convolution, a residual branch, a grafted layer: everything a root can stand before."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.normalise, self.pad = Normalise((0.4, 0.5), (-0.5, 0.25)), nn.ZeroPad2d((1, 0, 0, 1))
        self.conv, self.act1 = nn.Conv2d(2, 3, 2, stride=2), nn.ReLU()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        mask = torch.rand(8, generator=generator) < 0.4
        self.act2, self.act3 = GraftedActivation(nn.ReLU(), mask, 0.3, 0.1), nn.LeakyReLU(0.1)
        with torch.no_grad():
            for layer in (self.conv, self.fc1, self.fc2, self.fc3):
                scale = (2 / layer.weight[0].numel()) ** 0.5
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * scale)
                layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator) / 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(self.act1(self.conv(self.pad(self.normalise(x)))).flatten(1))
        out: Tensor = self.fc3(self.act3(self.fc2(self.act2(h)) + h))
        return out


@pytest.fixture
def model(generator: torch.Generator) -> Tiny:
    return Tiny(generator).double()


@pytest.fixture
def prepared(model: Tiny, generator: torch.Generator) -> Prepared:
    x = torch.rand(5, 2, 4, 4, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        return prepare(trace(model, (2, 4, 4)).to(), Box.linf(x, 0.2))


@pytest.fixture
def images(prepared: Prepared) -> Images:
    y = evaluate(prepared.network, prepared.box.centre)[prepared.network.output].argmax(1)
    layout = Layout.of(prepared.network, prepared.network.output)
    box = (prepared.box.lower, prepared.box.upper)
    return Images(NeuronBounds.of(layout, prepared.intervals), torch.arange(5), y, box, box)


def whole(images: Images, splits: int = 6) -> Subproblems:
    """One subproblem without splits for each image, with room for splits."""
    image = torch.arange(len(images))
    target = (images.y + 1) % CLASSES
    alpha = torch.full((len(images), images.bounds.open.shape[1]), 0.5, dtype=torch.float64)
    none = torch.full((len(images), splits), images.layout.size)
    zero = torch.zeros(len(images), splits, dtype=torch.float64)
    return Subproblems(image, target, alpha[:, 0] * 0 - 9.0, alpha, image * 0, none, zero, zero, zero)


def function(images: Images, sub: Subproblems) -> LowerBound:
    return LowerBound(images.bounds, sub.image, images.margins(sub.image, sub.target), sub.neuron, sub.sign)


def random_splits(images: Images, sub: Subproblems, count: int, generator: torch.Generator) -> Subproblems:
    """Random halves of random open neurons, `count` times."""
    for _ in range(count):
        free = function(images, sub).free
        column = torch.multinomial(free.double() + 1e-9, 1, generator=generator)
        both = sub.split(images.bounds.open[sub.image].gather(1, column).squeeze(1))
        side = torch.randint(2, (len(sub),), generator=generator)
        sub = both.at(torch.arange(len(sub)) + side * len(sub))
    return sub


def test_without_splits_and_with_crowns_lines_the_bound_is_crowns(images: Images, prepared: Prepared) -> None:
    sub = whole(images)
    relaxed = function(images, sub)
    ours, _ = relaxed.value(relaxed.start(), sub.beta)
    C = images.margins(sub.image, sub.target)[:, 0]
    crown = bound(prepared.network, prepared.box, "crown", C).lower[:, 0]
    assert torch.allclose(ours, crown, atol=1e-10)


@pytest.mark.parametrize("splits", [0, 1, 3, 6])
def test_bounds_hold_for_every_alpha_and_beta_on_points_that_satisfy_the_splits(
    splits: int, images: Images, generator: torch.Generator
) -> None:
    network = images.layout.network
    checked = 0
    for _ in range(6):
        sub = random_splits(images, whole(images), splits, generator)
        alpha = torch.rand(sub.alpha.shape, generator=generator, dtype=torch.float64)
        beta = torch.rand(sub.beta.shape, generator=generator, dtype=torch.float64)
        found, _ = function(images, sub).value(alpha, beta)
        points = torch.rand(400, 1, 2, 4, 4, generator=generator, dtype=torch.float64)
        low, high = images.box
        for i in range(len(images)):
            x = (low[i] + points * (high[i] - low[i])).flatten(0, 1)
            values = evaluate(network, x)
            pre = {a: values[network.nodes[a].inputs[0]] for a in images.layout.places}
            z = torch.nn.functional.pad(images.layout.flat(pre), (0, 1))[:, sub.neuron[i]]
            inside = (z * sub.sign[i] >= 0).all(1)
            margin = values[network.output] @ images.margins(sub.image, sub.target)[i, 0, 0]
            checked += int(inside.sum())
            assert bool((margin[inside] >= found[i] - 1e-9).all())
    assert checked > 0


def test_optimising_never_loses_and_splitting_never_loosens_the_optimum(
    images: Images, generator: torch.Generator
) -> None:
    sub = whole(images)
    steps = AlphaSettings(60, 0.1, 0.98)
    start, _ = function(images, sub).value(sub.alpha, sub.beta)
    best = optimise(function(images, sub), sub.alpha, sub.beta, steps, lr_beta=0.1)
    assert bool((best.bound >= start - 1e-12).all())
    assert bool(((best.alpha >= 0) & (best.alpha <= 1)).all())
    again, _ = function(images, sub).value(best.alpha, best.beta)
    assert torch.allclose(again, best.bound)
    for half in (0, 1):
        child = replace(sub, alpha=best.alpha).split(images.bounds.open[:, 0])
        child = child.at(torch.arange(5) + 5 * half)
        found = optimise(function(images, child), child.alpha, child.beta, steps, lr_beta=0.1)
        assert bool((found.bound >= best.bound - 1e-2).all())


def test_the_corner_attains_the_linear_bound(images: Images, generator: torch.Generator) -> None:
    network, root = images.layout.network, images.layout.path.root
    assert root == 2  # normalisation and padding lie before it
    rows = torch.randn(5, *network.nodes[root].shape, generator=generator, dtype=torch.float64)
    point = images.corner(torch.arange(5), rows)
    lower, upper = images.bounds.root
    least = torch.where(rows > 0, rows * lower, rows * upper).flatten(1).sum(1)
    assert torch.allclose((evaluate(network, point)[root] * rows).flatten(1).sum(1), least)
    x = torch.rand(5, 2, 4, 4, generator=generator, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad((evaluate(network, x)[root] * rows).sum(), x)
    assert torch.allclose(at_input(network, root, rows), slope)


def test_open_neurons_are_unstable_and_not_grafted(images: Images) -> None:
    layout = images.layout
    grafted = torch.zeros(layout.size + 1, dtype=torch.bool)
    for i, place in layout.places.items():
        node = layout.network.nodes[i]
        assert isinstance(node, Activation)
        if node.graft is not None:
            grafted[place] = node.graft.mask.flatten()
    for i in range(len(images)):
        unstable = (images.bounds.lower[i] < 0) & (images.bounds.upper[i] > 0) & ~grafted
        assert (
            images.bounds.open[i][images.bounds.open[i] < layout.size].tolist()
            == torch.nonzero(unstable).flatten().tolist()
        )
    assert bool(grafted.any())


@pytest.mark.parametrize("name", sorted(BRANCHING))
def test_branching_picks_open_neurons_that_are_not_split_yet(name: str, images: Images) -> None:
    step = Step(images, VerifySettings(branch=BranchSettings(rule=name, iterations=1)))
    sub = whole(images, splits=4)
    with torch.no_grad():
        for depth in range(4):
            neuron = step.decide(sub).neuron[: len(sub), depth]
            assert bool((images.bounds.open == neuron[:, None]).any(1).all())
            assert not bool((sub.neuron == neuron[:, None]).any())
            children = step(sub)
            assert bool((children.sub.depth == depth + 1).all())
            assert bool((children.sub.bound >= sub.bound.repeat(2)).all())
            sub = children.sub.at(torch.arange(len(sub)))


def test_the_filter_takes_the_candidate_whose_halves_leave_least_to_prove(images: Images) -> None:
    settings = VerifySettings(branch=BranchSettings(rule="filtered", candidates=10_000))
    sub = whole(images)
    with torch.no_grad():
        chosen = Step(images, settings).decide(sub).neuron[:, 0]
        for i in range(len(images)):
            left = {}
            for neuron in images.bounds.open[i][images.bounds.open[i] < images.layout.size]:
                halves = sub.at(torch.tensor([i])).split(neuron[None])
                found, _ = function(images, halves).value(halves.alpha, halves.beta)
                left[int(neuron)] = float(torch.maximum(found, halves.bound).clamp(max=0).sum())
            assert left[int(chosen[i])] == pytest.approx(max(left.values()), abs=1e-9)


def test_an_unknown_branching_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="babsr"):
        branching_named("babssr")


def test_a_split_gives_both_halves_and_keeps_the_rest(images: Images) -> None:
    sub = whole(images)
    halves = sub.split(images.bounds.open[:, 0]).at(torch.tensor([2, 7])).split(images.bounds.open[2, 1:2].repeat(2))
    assert halves.image.tolist() == [2, 2, 2, 2]
    assert halves.sign[:, :3].tolist() == [[1, 1, 0], [-1, 1, 0], [1, -1, 0], [-1, -1, 0]]
    assert halves.neuron[:, :2].tolist() == [[int(images.bounds.open[2, 0]), int(images.bounds.open[2, 1])]] * 4
    assert halves.depth.tolist() == [2] * 4


def pool_of(places: list[int], bounds: list[float], images: Images) -> Pool:
    sub = whole(images).at(torch.tensor(places))
    return Pool(replace(sub, bound=torch.tensor(bounds, dtype=torch.float64)), images.layout.size)


def test_the_pool_is_fair_across_images_and_worst_first_within(images: Images) -> None:
    places = [0, 0, 0, 0, 1, 1, 2]
    bounds = [-1.0, -4.0, -3.0, -2.0, -0.5, -0.1, -9.0]
    pool = pool_of(places, bounds, images)
    assert sorted(pool.select(3).tolist()) == [1, 4, 6]
    assert sorted(pool.select(5).tolist()) == [1, 2, 4, 5, 6]
    assert sorted(pool.select(6).tolist()) == [1, 2, 3, 4, 5, 6]
    assert len(pool.select(100)) == 7


def test_an_image_that_costs_more_gets_fewer_of_its_own(images: Images) -> None:
    pool = pool_of([0] * 6 + [1] * 6, [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0] * 2, images)
    assert pool.worst_bounds(3).tolist() == [-6.0, -6.0, 0.0]
    assert sorted(pool.select(6, torch.tensor([1.0, 2.0, 1.0])).tolist()) == [0, 1, 2, 3, 6, 7]
    assert sorted(pool.select(6, torch.tensor([100.0, 1.0, 1.0])).tolist()) == [6, 7, 8, 9, 10, 11]


def test_an_image_that_costs_much_gets_its_share_over_many_rounds(images: Images) -> None:
    pool = pool_of([0] * 6 + [1] * 6, [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0] * 2, images)
    chosen = torch.cat([pool.select(4, torch.tensor([20.0, 1.0, 1.0])) for _ in range(210)])
    assert 30 <= int((chosen < 6).sum()) <= 50  # 40 are a twentieth of the others' 800


def test_the_pool_gives_back_what_it_took_and_reuses_slots(images: Images, generator: torch.Generator) -> None:
    sub = random_splits(images, whole(images), 2, generator)
    sub = replace(sub, beta=torch.rand(sub.beta.shape, generator=generator, dtype=torch.float64))
    pool = Pool(sub.at(torch.arange(2)), images.layout.size)
    pool.push(sub.at(torch.arange(2, 5)))
    slots = len(pool.used)
    out = pool.take(pool.select(10))
    assert len(pool) == 0
    order = out.image.argsort()
    for name, tensor in out.tensors().items():
        expected = sub.tensors()[name]
        tolerance = 0.5 / 255 if name == "alpha" else 0.0
        assert torch.allclose(tensor[order].double(), expected.double(), rtol=0, atol=tolerance), name
    pool.push(out)
    assert len(pool.used) == slots
    pool.drop(0)
    pool.drop(2)
    assert sorted(pool.slots.image[pool.used].tolist()) == [1, 3, 4]
    pool.deepen(11)
    assert bool((pool.take(pool.select(1)).neuron[:, 6:] == images.layout.size).all())


def test_the_pool_knows_how_many_it_holds_whatever_was_done_to_it(images: Images) -> None:
    row = pool_of([0], [-1.0], images).slots.row_bytes()
    pool = pool_of([0, 0, 1, 2, 2], [-5.0, -4.0, -3.0, -2.0, -1.0], images)
    pool.limit, pool.spill_limit = 6 * row, 100 * row
    some = pool.slots.unpacked()

    def moved(image: int) -> None:
        pool.update(torch.tensor([0]), some.at(slice(0, 1)), torch.tensor([False]))
        pool.push(some.at(slice(image, image + 1)))

    steps: list[Callable[[], object]] = [
        lambda: pool.take(pool.select(2)),
        lambda: pool.push(some),
        lambda: pool.push(some),
        lambda: pool.drop(0),
        lambda: pool.refill(),
        lambda: moved(3),
        lambda: pool.remove(lambda packed: packed.bound > -2.0),
        lambda: pool.push(some),
        lambda: pool.leave([2]),
        lambda: pool.refill(),
    ]
    for step in steps:
        step()
        assert len(pool) == int(pool.used.sum())
        counts = pool.counts(3)
        spilled = [sum(len(block) for block in pool.spilled.get(image, [])) for image in range(3)]
        assert (counts - torch.tensor(spilled)).tolist() == [
            int((pool.used & (pool.slots.image == image)).sum()) for image in range(3)
        ]


def test_a_leaf_is_bounded_exactly_and_an_empty_one_without_limit(images: Images, generator: torch.Generator) -> None:
    """The pattern of a real point holds that point; turning one neuron over often leaves nothing."""
    layout, image, (low, high) = images.layout, 1, images.box
    network = layout.network
    open_ = images.bounds.open[image][images.bounds.open[image] < layout.size]
    x = (low[image] + torch.rand(2, 4, 4, generator=generator).double() * (high - low)[image])[None]
    values = evaluate(network, x)
    z = layout.flat({i: values[network.nodes[i].inputs[0]] for i in layout.places})[0, open_]
    sub = whole(images, splits=len(open_)).at(torch.tensor([image]))
    sub = replace(
        sub, neuron=open_[None], sign=torch.where(z > 0, 1.0, -1.0)[None].double(), depth=sub.depth + len(open_)
    )
    sub = replace(sub, beta=torch.zeros_like(sub.sign))
    leaf = solve_leaf(images, sub, 0, 10**6)
    assert leaf is not None
    margin = images.margins(sub.image, sub.target)[0, 0, 0]
    assert leaf.bound <= float(values[network.output][0] @ margin) + 1e-9
    assert leaf.bound == pytest.approx(float(evaluate(network, leaf.point[None])[network.output][0] @ margin), abs=1e-6)
    slow = optimise(function(images, sub), sub.alpha, sub.beta, AlphaSettings(800, 0.05, 0.995), lr_beta=0.2)
    assert float(slow.bound[0]) <= leaf.bound + 1e-6
    assert float(slow.bound[0]) == pytest.approx(leaf.bound, abs=1e-2)
    assert solve_leaf(images, sub, 0, 10) is None
    flipped = [
        solve_leaf(
            images, replace(sub, sign=sub.sign * torch.where(torch.arange(len(open_)) == k, -1.0, 1.0)), 0, 10**6
        )
        for k in range(len(open_))
    ]
    assert any(other is not None and other.bound > 100 for other in flipped)


@pytest.mark.parametrize("which", ["none", "vectors", "all"])
def test_refined_bounds_are_inside_crowns_and_hold(which: str, prepared: Prepared, generator: torch.Generator) -> None:
    network, box = prepared.network, (prepared.box.lower, prepared.box.upper)
    with torch.no_grad():
        tighter = refine(network, prepared.intervals, which, AlphaSettings(8, 0.1, 0.98), 64)
    improved: set[int] = set()
    samples = torch.rand(300, 5, 2, 4, 4, generator=generator, dtype=torch.float64)
    values = evaluate(network, (box[0] + samples * (box[1] - box[0])).flatten(0, 1))
    for _, node in network.activations():
        at = node.inputs[0]
        (lower, upper), (old_lower, old_upper) = tighter[at], prepared.intervals[at]
        assert bool(((lower >= old_lower) & (upper <= old_upper)).all())
        seen = values[at].view(300, 5, *node.shape)
        assert bool(((seen >= lower - 1e-9) & (seen <= upper + 1e-9)).all())
        if bool((lower > old_lower + 1e-9).any()):
            improved.add(at)
    assert bool(improved) == (which != "none")


def test_worst_rows_are_the_smallest_margins_of_each_image() -> None:
    image, margin = torch.tensor([2, 0, 2, 0, 2]), torch.tensor([1.0, 5.0, -1.0, 4.0, -1.0])
    assert sorted(worst_rows(image, margin, 4).tolist()) == [2, 3]


def test_work_that_fails_is_halved_down_to_the_items_that_cannot_be_done() -> None:
    calls: list[list[int]] = []

    def work(items: list[int]) -> list[int]:
        calls.append(items)
        if 5 in items or len(items) > 4:
            raise RuntimeError("item 5\nand details")
        return [10 * i for i in items]

    out = in_halves(list(range(8)), work, lambda items, why: [(items, why)])  # type: ignore[arg-type,return-value]
    assert out == [0, 10, 20, 30, 40, ([5], "item 5"), 60, 70]
    with pytest.raises(ValueError, match="not ours"):
        in_halves([1], lambda items: (_ for _ in ()).throw(ValueError("not ours")), lambda items, why: [])


def test_a_device_that_failed_is_no_verdict_on_any_image() -> None:
    calls: list[list[int]] = []

    def work(items: list[int]) -> list[int]:
        calls.append(items)
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError):
        in_halves([1, 2], work, lambda items, why: items)
    assert calls == [[1, 2]]


def test_memory_that_the_driver_lacks_is_no_failure_of_the_device() -> None:
    def work(items: list[int]) -> list[str]:
        if len(items) > 1 or items == [2]:
            raise torch.AcceleratorError("CUDA error: out of memory\nSearch for it.")
        return ["done"]

    assert in_halves([1, 2], work, lambda items, why: [why]) == ["done", "memory"]


def test_graphs_with_other_shapes_masks_or_places_are_not_alike() -> None:
    one, other = torch.tensor([True, False]), torch.tensor([True, True])
    assert _alike_values(one, one.clone())
    assert not _alike_values(one, other)
    assert _alike_values(torch.rand(2), torch.rand(2))
    assert not _alike_values(torch.rand(2), torch.rand(3))
    line = torch.zeros(2)
    assert _alike_values(Graft(one, line, line), Graft(one.clone(), line + 1, line))
    assert not _alike_values(Graft(one, line, line), Graft(other, line, line))


def test_hidden_neurons_are_optimised_for_images_alone_that_optimised_margins_leave_open(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    model = Tiny(generator)
    x = torch.rand(40, 2, 4, 4, generator=generator)
    y = model(x).argmax(1)
    settings = VerifySettings().changed(attack={"restarts": 0}, limits={"max_subproblems": 0})
    half = settings.optimise.iterations // 2  # of the steps that margins get in the end
    plain = verify(model, x, y, 0.08, settings=settings.changed(optimise={"refine": "none", "iterations": half}))
    refined: list[int] = []

    def counted(network: Network, intervals: list[Interval], *rest: Any) -> list[Interval]:
        refined.append(len(intervals[0][0]))
        return refine(network, intervals, *rest)

    monkeypatch.setattr(stages, "refine", counted)
    verify(model, x, y, 0.08, settings=settings)
    methods = [(verdict.method, verdict.status) for verdict in plain]
    assert ("alpha-crown", "verified") in methods
    assert 0 < sum(refined) == sum(method == "bab" for method, _ in methods)


def test_margins_that_are_proved_are_not_optimised_again_with_better_hidden_neurons(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    model = Tiny(generator)
    x = torch.rand(300, 2, 4, 4, generator=generator)
    settings = VerifySettings().changed(attack={"restarts": 0})
    job = Job.of(model, x, model(x).argmax(1), 0.08, 0.0, 1.0, settings)
    (left,) = crown(job, list(range(len(x)))).rest
    before = left.margins.clone()
    optimised: list[int] = []

    def counted(function: LowerBound, alpha: Tensor, *rest: Any, **options: Any) -> Optimised:
        optimised.append(len(alpha))
        return optimise(function, alpha, *rest, **options)

    monkeypatch.setattr(stages, "optimise", counted)
    first = api._alpha_crown(left, Pass(refines=False, last=False), job, left.images)
    still = [image for part in first.rest for image in part.images.number.tolist()]
    places = [left.images.index(image) for image in still]
    assert sum(optimised) == int((~proved(before)).sum())
    assert int((~proved(left.margins[places])).sum()) < int((~proved(before[places])).sum())
    optimised.clear()
    api._alpha_crown(left, Pass(refines=True, last=True), job, still)
    assert 0 < sum(optimised) < int((~proved(before[places])).sum())


@pytest.mark.parametrize("normalised", [False, True])
def test_a_proof_computes_with_the_stored_numbers_folded_in_double_precision(normalised: bool) -> None:
    normalise = [Normalise([0.3], [0.7])] if normalised else []  # as a factor, one that float32 has to round
    model = nn.Sequential(*normalise, nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    job = Job.of(model, torch.rand(1, 1, 2, 2), torch.tensor([0]), 0.1, 0.0, 1.0, VerifySettings())
    assert job.proof is not None
    x = torch.rand(3, 1, 2, 2, dtype=torch.float64)
    y = evaluate(job.proof, x)[job.proof.output]
    torch.testing.assert_close(y, copy.deepcopy(model).double()(x), rtol=1e-12, atol=1e-12)


class Stored(nn.Module):
    """logits (c - q relu(x), 0), with a weight q that the forward computes of what it stores."""

    def __init__(self, weight: Callable[[nn.Module], Tensor], w: Tensor) -> None:
        super().__init__()
        self.w, self.weight = nn.Parameter(w), weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.relu(), self.weight(self)) + 0.1


COMPUTED: dict[str, Callable[[nn.Module], Tensor]] = {
    "quantised": lambda model: torch.round(model.w * 32767) / 32767,
    "low rank": lambda model: model.w @ model.w,
    "normalised": lambda model: model.w / model.w.norm(),
    "centred": lambda model: model.w - model.w.mean(),
}


@pytest.mark.parametrize("weight", COMPUTED.values(), ids=COMPUTED)
def test_a_proof_computes_with_the_numbers_that_the_model_computes(
    weight: Callable[[nn.Module], Tensor], generator: torch.Generator
) -> None:
    model = Stored(weight, torch.rand(3, 3, generator=generator))
    job = Job.of(model, torch.rand(1, 3), torch.tensor([0]), 0.1, 0.0, 1.0, VerifySettings())
    assert job.proof is not None
    (linear,) = (node for node in job.proof.nodes if isinstance(node, Linear))
    (scale,) = (node for node in job.proof.nodes if isinstance(node, Scale))
    assert linear.weight.dtype == torch.float64
    assert torch.equal(linear.weight, weight(model).detach().double())
    assert torch.equal(scale.shift, torch.tensor(0.1).double())


def test_a_batchnorm_is_folded_in_double_precision_even_where_its_terms_cancel(generator: torch.Generator) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2)).eval()
    bias, norm = model[0].bias, model[1]
    with torch.no_grad():
        norm.running_mean.copy_(bias + 1e-7)
        norm.running_var.uniform_(0.1, 2.0, generator=generator)
        norm.weight.uniform_(-30.0, 30.0, generator=generator)
    job = Job.of(model, torch.rand(1, 1, 2, 2), torch.tensor([0]), 0.1, 0.0, 1.0, VerifySettings())
    assert job.proof is not None
    x = torch.rand(3, 1, 2, 2, dtype=torch.float64)
    y = evaluate(job.proof, x)[job.proof.output]
    torch.testing.assert_close(y, copy.deepcopy(model).double()(x), rtol=1e-12, atol=1e-12)


def test_after_images_with_few_unstable_neurons_crown_takes_more_of_them_at_once(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    model = models.build("digits-cnn", "digits", seed=0).eval()
    x = torch.rand(20, 1, 8, 8, generator=generator)
    y = model(x).argmax(1)
    groups: list[int] = []

    def counted(job: Job, images: list[int]) -> Outcome[OpenMargins]:
        groups.append(len(images))
        return crown(job, images)

    monkeypatch.setattr(api, "crown", counted)
    monkeypatch.setattr(api, "NEURONS", 1)
    one_image = affordable_products(model)
    monkeypatch.setitem(PRODUCTS, "cpu", one_image)
    settings = VerifySettings().changed(attack={"restarts": 0}, limits={"max_subproblems": 0})
    verify(model, x, y, 1e-4, settings=settings)
    assert groups[0] == 1
    assert sum(groups) == len(x)
    assert max(groups) > 4


def affordable_products(model: nn.Module) -> float:
    """Multiplications by which one image fits between two looks at the clock if all of its neurons are bounded."""
    network = trace(model, (1, 8, 8))
    layers = [node for node in network.nodes if isinstance(node, Conv | Linear)]
    products = sum(math.prod(node.shape) * node.weight[0].numel() for node in layers)
    return 1.5 * products * sum(math.prod(node.shape) for _, node in network.activations())
