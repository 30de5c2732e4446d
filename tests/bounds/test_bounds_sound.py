"""Sound bounds hold in real numbers: compared with the same bounds in exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.crown import Prepared, prepare, specification_bounds
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.box import Box
from lipgraft.network import Network, trace

Vector = list[Fraction]
SCALES = [1.0, 1e6, 1e-30]


def exact(tensor: Tensor) -> Vector:
    return [Fraction(value) for value in tensor.detach().double().flatten().tolist()]


def dense(seed: int, scale: float, cancelling: bool) -> nn.Sequential:
    """Linear, ReLU, Linear, ReLU, Linear. scale: of the first layer's weights, taken back by the last one's.

    cancelling: huge biases that cancel in the output.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight.mul_(scale)
        model[0].bias.mul_(scale)
        model[4].weight.div_(scale)
        if cancelling:
            model[2].bias[:2] += 1e7
            model[4].weight[:, 1] = -model[4].weight[:, 0]
    return model


def layers(network: Network) -> list[tuple[list[Vector], Vector]]:
    """Weights and biases, exactly."""
    weighted = [node for node in network.nodes if hasattr(node, "weight")]
    return [([exact(row) for row in node.weight], exact(node.bias)) for node in weighted]


def exact_bound(
    network: Network,
    box: Box,
    ends: list[tuple[Vector, Vector]],
    row: Vector,
    slopes: list[Vector],
    shifts: list[Vector],
) -> Fraction:
    """Backward substitution in rational numbers over one box; ends, slopes, shifts by activation."""
    weights = layers(network)
    constant = Fraction(0)
    for depth in range(len(weights) - 1, -1, -1):
        matrix, bias = weights[depth]
        constant += sum(r * b for r, b in zip(row, bias, strict=True))
        row = [
            sum((r * line[j] for r, line in zip(row, matrix, strict=True)), Fraction(0)) for j in range(len(matrix[0]))
        ]
        if depth == 0:
            break
        passed: Vector = []
        for j, r in enumerate(row):
            low, high = ends[depth - 1][0][j], ends[depth - 1][1][j]
            if low >= 0 or high <= 0:
                out = r if low >= 0 else Fraction(0)
            elif r >= 0:
                out = r * slopes[depth - 1][j]
            else:
                chord = high / (high - low)
                out, constant = r * chord, constant - r * chord * low
            passed.append(out + shifts[depth - 1][j])
        row = passed
    for r, low, high in zip(row, exact(box.lower), exact(box.upper), strict=True):
        constant += r * (low if r > 0 else high)
    return constant


def pre_activations(prepared: Prepared) -> list[tuple[Vector, Vector]]:
    ends = [prepared.intervals[node.inputs[0]] for _, node in prepared.network.activations()]
    return [(exact(low), exact(high)) for low, high in ends]


@pytest.mark.parametrize("searched", [torch.float32, torch.float64])
@pytest.mark.parametrize("cancelling", [False, True])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("seed", range(4))
def test_no_bound_exceeds_the_exact_one_of_the_same_lines_and_multipliers(
    seed: int, scale: float, cancelling: bool, searched: torch.dtype
) -> None:
    network = trace(dense(seed, scale, cancelling), (4,)).to(dtype=torch.float64)
    box = Box.linf(torch.rand(1, 4), 0.1).to(dtype=torch.float64)
    with torch.no_grad():
        prepared = prepare(network, box, sound_for=searched)
        layout = Layout.of(network, network.output)
        bounds = NeuronBounds.of(layout, prepared.intervals, prepared.rounding)
        ends = pre_activations(prepared)
        crown = [[Fraction(int(u > -low)) for low, u in zip(*end, strict=True)] for end in ends]
        none = [[Fraction(0)] * 8] * 2
        C = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
        for row, found in zip(C, specification_bounds(prepared, C[None, None])[0, 0].tolist(), strict=True):
            assert Fraction(found) < exact_bound(network, box, ends, exact(row), crown, none)

        count = bounds.open.shape[1]
        if count == 0:
            return
        split = bounds.open[:, :1]
        for sign in (1.0, -1.0):
            function = LowerBound(
                bounds,
                torch.zeros(1, dtype=torch.int64),
                C[:1].view(1, 1, 1, 3),
                split,
                torch.full((1, 1), sign).double(),
            )
            alpha = (torch.rand(1, count) * 255).round().double() / 255
            beta = torch.rand(1, 1).double() * scale
            found = float(function.sound_value(alpha, beta))
            chosen = torch.zeros(layout.size + 1, dtype=torch.float64)
            chosen[bounds.open[0]] = alpha[0]
            shift = torch.zeros(layout.size + 1, dtype=torch.float64)
            shift[split[0, 0]] = -sign * beta[0, 0]
            slopes, shifts = ([exact(t[:8]), exact(t[8:16])] for t in (chosen, shift))
            halves = [([*low], [*high]) for low, high in ends]
            layer, place = divmod(int(split), 8)
            halves[layer][0 if sign > 0 else 1][place] = Fraction(0)
            assert Fraction(found) < exact_bound(network, box, halves, exact(C[0]), slopes, shifts)


@pytest.mark.parametrize("cancelling", [False, True])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("seed", range(4))
def test_every_exact_value_lies_inside_its_bounds(seed: int, scale: float, cancelling: bool) -> None:
    network = trace(dense(seed, scale, cancelling), (4,)).to(dtype=torch.float64)
    box = Box.linf(torch.rand(1, 4), 0.1).to(dtype=torch.float64)
    with torch.no_grad():
        prepared = prepare(network, box, sound_for=torch.float32)
    ends = pre_activations(prepared)
    ends_of_inputs = list(zip(exact(box.lower), exact(box.upper), strict=True))
    for corner in range(16):
        x = [high if corner >> k & 1 else low for k, (low, high) in enumerate(ends_of_inputs)]
        for depth, (matrix, bias) in enumerate(layers(network)[:-1]):
            z = [sum((w * v for w, v in zip(line, x, strict=True)), b) for line, b in zip(matrix, bias, strict=True)]
            for value, low, high in zip(z, *ends[depth], strict=True):
                assert low <= value <= high
            x = [max(value, Fraction(0)) for value in z]


def test_a_neuron_that_is_exactly_zero_stays_stable() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight[:3] = 0.0
        model[0].bias[:3] = 0.0
        network = trace(model, (4,)).to(dtype=torch.float64)
        box = Box.linf(torch.rand(1, 4), 0.1).to(dtype=torch.float64)
        prepared = prepare(network, box, sound_for=torch.float32)
    lower, upper = prepared.intervals[next(network.activations())[1].inputs[0]]
    assert not lower[0, :3].any()
    assert not upper[0, :3].any()


def test_bounds_of_neurons_are_numbers_of_the_type_that_searches() -> None:
    network = trace(dense(0, 1.0, False), (4,)).to(dtype=torch.float64)
    box = Box.linf(torch.rand(3, 4), 0.1).to(dtype=torch.float64)
    with torch.no_grad():
        prepared = prepare(network, box, sound_for=torch.float32)
    for _, node in network.activations():
        for end in prepared.intervals[node.inputs[0]]:
            assert torch.equal(end, end.float().double())


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_proof_does_not_trust_the_numbers_that_it_is_given(seed: int, sign: float) -> None:
    network = trace(dense(seed, 1.0, False), (4,)).to(dtype=torch.float64)
    box = Box.linf(torch.full((1, 4), 0.5), 0.5).to(dtype=torch.float64)
    with torch.no_grad():
        prepared = prepare(network, box, sound_for=torch.float32)
        bounds = NeuronBounds.of(Layout.of(network, network.output), prepared.intervals, prepared.rounding)
        row = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 3)
        split = bounds.open[:, :1], torch.full((1, 1), sign, dtype=torch.float64)
        function = LowerBound(bounds, torch.zeros(1, dtype=torch.int64), row, *split)
        one, zero = (torch.full((1, bounds.open.shape[1]), end, dtype=torch.float64) for end in (1.0, 0.0))
        none = torch.zeros(1, 1, dtype=torch.float64)
        assert torch.equal(function.sound_value(one * 50, none - 1e6), function.sound_value(one, none))
        assert torch.equal(function.sound_value(zero - 50, none - 1e6), function.sound_value(zero, none))
        assert float(function.sound_value(one * torch.nan, none)) == -torch.inf
        assert float(function.sound_value(one, none * torch.nan)) == -torch.inf
