"""The paper's lemmas: what holds under which premise, and what does not. docs/lemmas.md tells the same in words.

Widths are those of interval arithmetic, as in the paper's proofs, where Lip is the width of the output over 2 eps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipgraft.bounds import interval_bounds
from lipgraft.bounds.relaxations import family
from lipgraft.box import Box
from lipgraft.grafting import apply
from lipgraft.grafting.scores import gain
from lipgraft.network import Activation, Graft, Network, evaluate, trace

Lines = dict[str, tuple[Tensor, Tensor, Tensor]]  # activation name: mask, gamma, omega
unit = st.floats(0.0, 1.0)
positive = st.floats(0.01, 100.0)


def random_network(depth: int, seed: int, outputs: int = 3) -> tuple[Network, Box]:
    """`depth` hidden layers of 6 ReLUs on 4 inputs, weights and biases normal; a box around a random point."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [4, *[6] * depth, outputs]
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layer = nn.Linear(n, m).double()
        with torch.no_grad():
            layer.weight.copy_(torch.randn(m, n, generator=generator) / n**0.5)
            layer.bias.copy_(0.3 * torch.randn(m, generator=generator))
        layers += [layer, nn.ReLU()]
    x = torch.randn(1, 4, generator=generator).double()
    return trace(nn.Sequential(*layers[:-1]), (4,), check=False), Box.linf(x, 0.5, low=None, high=None)


def grafted(network: Network, lines: Lines) -> Network:
    nodes = [replace(n, graft=Graft(*lines[n.name])) if n.name in lines else n for n in network.nodes]
    return Network(tuple(nodes), network.output)


def output_interval(network: Network, box: Box) -> tuple[Tensor, Tensor]:
    lower, upper = interval_bounds(network, box)[network.output]
    return lower.detach(), upper.detach()


def output_width(network: Network, box: Box) -> Tensor:
    lower, upper = output_interval(network, box)
    return upper - lower


def unstable(network: Network, box: Box) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """{activation: (lb, ub, lb < 0 < ub)}, of the network as it is."""
    intervals = interval_bounds(network, box)
    found = {}
    for _, node in network.activations():
        lb, ub = (end[0].detach() for end in intervals[node.inputs[0]])
        found[node.name] = lb, ub, (lb < 0) & (ub > 0)
    return found


def all_unstable_with_slope(network: Network, box: Box, gamma: float) -> Network:
    """Every unstable neuron becomes the line gamma z, as Lemma 2 says."""
    found = unstable(network, box)
    lines = {name: (mask, torch.full_like(lb, gamma), torch.zeros_like(lb)) for name, (lb, _, mask) in found.items()}
    return grafted(network, lines)


# --- Lemma 1 -----------------------------------------------------------------------------------------------------


def one_unit(lb: float, ub: float) -> tuple[Network, Box]:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.fill_(1.0)
            layer.bias.zero_()
    return trace(model, (1,)), Box(torch.tensor([[lb]]).double(), torch.tensor([[ub]]).double())


def relu_error(lb: float, ub: float, c: float) -> float:
    """The error of a relaxed ReLU in the lemma's sense, chord(ub) - c lb, from the engine's own two lines."""
    network, box = one_unit(lb, ub)
    node = network.nodes[network.names["1"]]
    assert isinstance(node, Activation)
    lines = family(node, box.lower, box.upper)(torch.full((1, 1, 1), c).double())
    assert lines.upper_intercept is not None
    assert lines.lower_slope.item() == pytest.approx(c)
    return float(lines.upper_slope * ub + lines.upper_intercept - lines.lower_slope * lb)


def line_width(lb: float, ub: float, gamma: float, omega: float = 0.0) -> float:
    """The width of a neuron that is grafted by gamma z + omega."""
    network, box = one_unit(lb, ub)
    line = torch.tensor([gamma]).double(), torch.tensor([omega]).double()
    return output_width(grafted(network, {"1": (torch.tensor([True]), *line)}), box).item()


@given(lb=positive, ub=positive, c=st.floats(0.01, 1.0), at_lb=unit, at_ub=unit)
@settings(max_examples=300, deadline=None)
def test_lemma_1_holds_for_a_line_between_the_relaxations_lines(lb, ub, c, at_lb, at_ub):
    """Premise: c z <= gamma z + omega <= chord on [lb, ub], which is the same at the two ends. Then the ReLU's error in
    the lemma's sense is at least the grafted neuron's width, gamma (ub - lb)."""
    lb = -lb
    left, right = at_lb * c * lb, c * ub + at_ub * (ub - c * ub)  # the line's values at lb and at ub
    gamma = (right - left) / (ub - lb)
    assert relu_error(lb, ub, c) >= line_width(lb, ub, gamma, left - gamma * lb) - 1e-9 * (ub - lb)


def test_lemma_1_fails_without_its_premise():
    assert relu_error(-10.0, 1.0, 0.1) == pytest.approx(2.0)
    assert line_width(-10.0, 1.0, 0.4) == pytest.approx(4.4)  # 0.4 z lies below 0.1 z at lb


def test_lemma_1_does_not_bound_the_line_by_the_relus_own_interval():
    """[lb, ub] = [-1, 1], c = 1, the line z: premise met, the lemma's error 2, ReLU's own width 1."""
    assert line_width(-1.0, 1.0, 1.0) == pytest.approx(relu_error(-1.0, 1.0, 1.0)) == pytest.approx(2.0)
    assert output_width(*one_unit(-1.0, 1.0)).item() == pytest.approx(1.0)


# --- Lemma 2 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "width"), [(0.4, 4.4), (1.0, 11.0), (-5.0, 55.0)])
def test_lemma_2_counterexample_one_unit_gets_wider_though_gamma_is_at_most_1(gamma, width):
    network, box = one_unit(-10.0, 1.0)
    assert output_width(network, box).item() == pytest.approx(1.0)
    assert output_width(all_unstable_with_slope(network, box, gamma), box).item() == pytest.approx(width)


def test_lemma_2_counterexample_the_true_lipschitz_constant_doubles():
    """relu(x) - relu(-x) = x has constant 1; with both units grafted by gamma = 1 it is 2 x."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[2].weight.copy_(torch.tensor([[1.0, -1.0]]))
    x = torch.linspace(-1, 1, 101)[:, None]
    new = apply(model, {"1": torch.tensor([True, True])}, slope=1.0, input_shape=(1,))
    torch.testing.assert_close(model(x), x)
    torch.testing.assert_close(new(x), 2 * x)


@given(seed=st.integers(0, 10**6), draws=st.lists(unit, min_size=12, max_size=12))
@settings(max_examples=80, deadline=None)
def test_with_one_hidden_layer_slopes_up_to_ub_over_width_never_widen_an_output(seed, draws):
    """|gamma_j| <= ub_j / (ub_j - lb_j) for any set of unstable neurons, any omega: no output interval gets wider."""
    network, box = random_network(1, seed)
    ((name, (lb, ub, free)),) = unstable(network, box).items()
    mask = free & (torch.tensor(draws[:6]) < 0.7)
    slopes = (2 * torch.tensor(draws[6:]).double() - 1) * ub / (ub - lb)
    new = grafted(network, {name: (mask, slopes, torch.full_like(slopes, 0.3))})
    assert bool((output_width(new, box) <= output_width(network, box) + 1e-9).all())


def test_with_two_hidden_layers_the_same_slope_can_wake_a_neuron_behind():
    """z in [-1, 1], then relu(-h): 0 for every h in [0, 1]. The line z / 2 has h in [-1/2, 1/2], and wakes it."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for layer, weight in zip((model[0], model[2], model[4]), (1.0, -1.0, 1.0), strict=True):
            layer.weight.fill_(weight)
            layer.bias.zero_()
    network = trace(model, (1,))
    box = Box(torch.tensor([[-1.0]]).double(), torch.tensor([[1.0]]).double())
    half = torch.tensor([0.5]).double()
    new = grafted(network, {"1": (torch.tensor([True]), half, 0 * half)})
    assert output_width(network, box).item() == 0.0
    assert output_width(new, box).item() == pytest.approx(0.5)


@given(seed=st.integers(0, 10**6), depth=st.integers(1, 4), draws=st.lists(unit, min_size=18, max_size=18))
@settings(max_examples=80, deadline=None)
def test_at_any_depth_lines_that_stay_inside_the_relus_interval_never_widen_an_output(seed, depth, draws):
    """0 <= gamma <= ub / (ub - lb) and -gamma lb <= omega <= ub - gamma ub: the line maps [lb, ub] into [0, ub].

    By inclusion, layer after layer, every interval of the grafted network lies in that of the original.
    """
    network, box = random_network(depth, seed)
    pick, steep, shift = torch.tensor(draws).double().reshape(3, 6)
    lines: Lines = {}
    for name, (lb, ub, free) in unstable(network, box).items():
        gamma = steep * ub / (ub - lb)
        low, high = -gamma * lb, ub - gamma * ub
        lines[name] = free & (pick < 0.7), gamma, low + shift * (high - low)
    lower, upper = output_interval(network, box)
    new_lower, new_upper = output_interval(grafted(network, lines), box)
    assert bool((new_lower >= lower - 1e-9).all())
    assert bool((new_upper <= upper + 1e-9).all())


def test_how_often_lemma_2_fails_grows_with_the_slope():
    """The counts of docs/lemmas.md: on how many of 100 random networks with two hidden layers grafting every unstable
    neuron by gamma z widens the widest output."""
    failures = dict.fromkeys((0.2, 0.4, 0.5, 1.0), 0)
    for seed in range(100):
        network, box = random_network(2, seed)
        before = output_width(network, box).max()
        for gamma in failures:
            after = output_width(all_unstable_with_slope(network, box, gamma), box).max()
            failures[gamma] += int(after > before + 1e-9)
    assert failures == {0.2: 4, 0.4: 24, 0.5: 47, 1.0: 100}


# --- Theorem 1 ---------------------------------------------------------------------------------------------------


def one_layer(weights: Tensor, lb: Tensor, ub: Tensor) -> tuple[Network, Box]:
    """Output j is sum_i weights[j, i] relu(z_i), with z_i free in [lb_i, ub_i]."""
    outputs, n = weights.shape
    model = nn.Sequential(nn.Linear(n, n, bias=False), nn.ReLU(), nn.Linear(n, outputs, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(n))
        model[2].weight.copy_(weights)
    return trace(model, (n,)), Box(lb[None], ub[None])


def width_after(network: Network, box: Box, chosen: tuple[int, ...], gamma: float) -> float:
    """The widest output when these neurons become the line gamma z."""
    n = network.input_shape[0]
    mask = torch.zeros(n, dtype=torch.bool)
    mask[list(chosen)] = True
    line = torch.full((n,), gamma).double(), torch.zeros(n).double()
    return float(output_width(grafted(network, {"1": (mask, *line)}), box).max())


def top_k(score: Tensor, k: int) -> tuple[int, ...]:
    return tuple(score.topk(k).indices.tolist())


def test_theorem_1_counterexample_the_top_neuron_is_the_worse_choice():
    """Neuron 0: |w| = 1, [-10, 1], score 11. Neuron 1: |w| = 1, [-1, 1], score 2. gamma = 0.4, k = 1.

    Width 2 before; 1 + 4.4 after grafting the neuron of the larger score, 0.8 + 1 after grafting the other.
    """
    lb, ub = torch.tensor([-10.0, -1.0]).double(), torch.tensor([1.0, 1.0]).double()
    network, box = one_layer(torch.ones(1, 2), lb, ub)
    assert width_after(network, box, (), 0.4) == pytest.approx(2.0)
    assert width_after(network, box, (0,), 0.4) == pytest.approx(5.4)
    assert width_after(network, box, (1,), 0.4) == pytest.approx(1.8)


units = st.lists(st.tuples(positive, positive, st.floats(-3.0, 3.0)), min_size=2, max_size=6)


@given(units=units, k=st.integers(1, 3), gamma=st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_with_one_output_the_largest_gains_are_the_best_subset(units, k, gamma):
    """|w| (ub - gamma (ub - lb)) adds up over neurons, so its top k beats every other k neurons."""
    lb, ub, w = torch.tensor(units).double().T
    lb, k = -lb, min(k, len(units))
    network, box = one_layer(w[None], lb, ub)
    best = width_after(network, box, top_k(w.abs() * gain(ub, ub - lb, gamma), k), gamma)
    widths = [width_after(network, box, subset, gamma) for subset in combinations(range(len(units)), k)]
    assert best <= min(widths) + 1e-9 * (1 + max(widths))


@given(units=units, k=st.integers(1, 3), rho=st.floats(0.45, 1.0))
@settings(max_examples=60, deadline=None)
def test_theorem_1_holds_for_one_output_when_all_intervals_have_the_same_form(units, k, rho):
    """With one and the same rho = ub / (ub - lb) >= gamma for all neurons, gain = score * (rho - gamma)."""
    width, _, w = torch.tensor(units).double().T
    k, ub, lb = min(k, len(units)), rho * width, (rho - 1) * width
    network, box = one_layer(w[None], lb, ub)
    best = width_after(network, box, top_k(w.abs() * (ub - lb), k), 0.4)
    widths = [width_after(network, box, subset, 0.4) for subset in combinations(range(len(units)), k)]
    assert best <= min(widths) + 1e-9 * (1 + max(widths))


def test_how_often_the_top_of_each_score_is_the_best_subset():
    """The counts of docs/lemmas.md: 1000 random layers of 8 unstable neurons and 3 outputs, k = 3, gamma = 0.4.

    Widths in closed form: output j has sum_i |w_ij| ub_i, less |w_ij| gain_i for each grafted i. On the first layers
    this is held against the engine's intervals.
    """
    generator = torch.Generator().manual_seed(0)
    subsets = torch.tensor(list(combinations(range(8), 3)))
    best = {"paper": 0, "gain": 0}
    ahead = {"paper": 0.0, "gain": 0.0}
    for number in range(1000):
        w = torch.randn(3, 8, generator=generator, dtype=torch.float64).abs()
        ub, width = torch.rand(2, 8, generator=generator, dtype=torch.float64)
        width = ub + width  # lb = ub - width < 0 < ub
        gains = gain(ub, width, 0.4)
        widths = ((w @ ub)[:, None] - (w * gains)[:, subsets].sum(-1)).amax(0)  # of every subset
        if number < 3:
            network, box = one_layer(w, ub - width, ub)
            exact = [width_after(network, box, tuple(subset), 0.4) for subset in subsets.tolist()]
            assert widths.tolist() == pytest.approx(exact)
        for name, score in {"paper": (w * width).amax(0), "gain": (w * gains).amax(0)}.items():
            chosen = torch.tensor(sorted(top_k(score, 3)))
            mine = widths[(subsets == chosen).all(1)]
            best[name] += int(mine <= widths.min() + 1e-12)
            ahead[name] += float((widths < mine - 1e-12).double().mean()) / 1000
    assert best == {"paper": 76, "gain": 610}
    assert ahead == {"paper": pytest.approx(0.343, abs=0.001), "gain": pytest.approx(0.017, abs=0.001)}


def test_with_several_outputs_no_score_per_neuron_is_always_right():
    """The constant is a maximum over outputs: output 1 is the widest, so the smaller gain, there, is the better one."""
    weights = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 5.0]])
    lb, ub = -torch.ones(3).double(), torch.ones(3).double()
    network, box = one_layer(weights, lb, ub)
    by_gain = top_k((weights.abs().amax(0) * gain(ub, ub - lb, 0.4))[:2], 1)  # among neurons 0 and 1
    assert by_gain == (0,)
    assert width_after(network, box, (1,), 0.4) < width_after(network, box, (0,), 0.4)


def test_the_helpers_graft_means_what_the_library_means():
    """The networks above are grafted in the graph; `apply` on the module gives the same function."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    mask = torch.tensor([True, False, True])
    new = apply(model, {"1": mask}, slope=0.4, input_shape=(2,))
    line = torch.full((3,), 0.4).double(), torch.zeros(3).double()
    network = grafted(trace(model, (2,)), {"1": (mask, *line)})
    assert isinstance(network.nodes[network.names["1"]], Activation)
    x = torch.randn(5, 2).double()
    torch.testing.assert_close(evaluate(network, x)[network.output], new(x))
