"""What the sign of one first-layer neuron says about the others: true of every input, and worth knowing."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from lipgraft.bounds.crown import prepare
from lipgraft.bounds.implied import Implied
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.box import Box
from lipgraft.network import Network, evaluate, trace
from lipgraft.verification import VerifySettings, verify

INPUTS, NEURONS = 6, 24


def one_layer(seed: int, neurons: int = NEURONS) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(INPUTS, neurons), nn.ReLU(), nn.Linear(neurons, 2))
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator))
    return model


def convolution(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def found(network: Network, box: Box) -> tuple[NeuronBounds, Implied]:
    prepared = prepare(network, box, sound_for=torch.float32)
    bounds = NeuronBounds.of(Layout.of(network, network.output), prepared.intervals, prepared.rounding)
    implied = Implied.of(bounds, torch.float32)
    assert implied is not None
    return bounds, implied


def narrowed(
    bounds: NeuronBounds, implied: Implied, image: int, splits: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """The bounds of one subproblem's neurons. splits: neurons and signs."""
    neuron, sign = torch.tensor(splits).T
    at = torch.tensor([image])
    ends = bounds.lower[at], bounds.upper[at]
    lower, upper = implied.narrowed(*ends, implied.neurons[at], at, neuron[None], sign[None].double())
    return lower[0, :-1], upper[0, :-1]


@pytest.mark.parametrize(("model", "shape"), [(one_layer(0), (INPUTS,)), (convolution(0), (1, 3, 3))])
def test_every_input_with_the_splits_signs_is_inside_the_implied_bounds(
    model: nn.Sequential, shape: tuple[int, ...]
) -> None:
    network = trace(model.double(), shape).to()
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    box = Box(centres - 0.4, centres + torch.tensor([0.0, 0.4, 0.9]).view(-1, *[1] * len(shape)))
    bounds, implied = found(network, box)
    for image in range(3):
        share = torch.rand(2000, *shape, generator=generator, dtype=torch.float64)
        share[::2] = share[::2].round()  # every other one is a corner
        x = box.lower[image] + share * (box.upper - box.lower)[image]
        values = evaluate(network, x)
        z = torch.cat([values[bounds.layout.activation(i).inputs[0]].flatten(1) for i in bounds.layout.places], 1)
        neurons = [k for k in implied.neurons[image].tolist() if k < bounds.layout.size]
        for k, other in zip(neurons, [*neurons[1:], *neurons[:1]], strict=True):
            for splits in ([(k, 1)], [(k, -1)], [(k, 1), (other, -1)]):
                lower, upper = narrowed(bounds, implied, image, splits)
                here = torch.stack([sign * z[:, j] >= 0 for j, sign in splits]).all(0)
                assert (z[here] >= lower - 1e-12).all()
                assert (z[here] <= upper + 1e-12).all()


def test_implied_bounds_come_close_to_those_of_linear_programs_and_never_beyond() -> None:
    model = one_layer(2).double()
    network = trace(model, (INPUTS,)).to()
    bounds, implied = found(network, Box(torch.full((1, INPUTS), -0.5).double(), torch.full((1, INPUTS), 0.5).double()))
    weight, const = model[0].weight.detach(), model[0].bias.detach()
    could = did = 0.0
    neurons = [k for k in implied.neurons[0].tolist() if k < NEURONS][:6]
    for k in neurons:
        lower, _ = narrowed(bounds, implied, 0, [(k, 1)])
        for j in neurons:
            program = linprog(
                weight[j].numpy(), -weight[k : k + 1].numpy(), [float(const[k])], bounds=[(-0.5, 0.5)] * INPUTS
            )
            least = program.fun + float(const[j])
            assert float(lower[j]) <= least + 1e-7
            could += least - float(bounds.lower[0, j])
            did += float(lower[j] - bounds.lower[0, j])
    assert did > 0.8 * could > 0


def test_images_without_open_neurons_or_with_other_ones_do_not_mix() -> None:
    network = trace(one_layer(3).double(), (INPUTS,)).to()
    centre = torch.zeros(3, INPUTS).double()
    radius = torch.tensor([1e-6, 0.3, 0.6]).double()[:, None]
    together, implied = found(network, Box(centre - radius, centre + radius))
    assert implied.neurons[0].eq(NEURONS).all()
    for image in (1, 2):
        alone, own = found(network, Box((centre - radius)[image : image + 1], (centre + radius)[image : image + 1]))
        for k in own.neurons[0].tolist():
            for sign in (1, -1):
                ends = zip(
                    narrowed(together, implied, image, [(k, sign)]), narrowed(alone, own, 0, [(k, sign)]), strict=True
                )
                assert all(torch.equal(one, other) for one, other in ends)


@pytest.mark.long
def test_a_hidden_layer_needs_fewer_subproblems_than_it_would_without() -> None:
    """Two thirds more than there are now is still far from the 2012 that splits without implied bounds take."""
    model, eps = one_layer(1, neurons=40), 1.0
    with torch.no_grad():
        points = (2 * torch.rand(100000, INPUTS, generator=torch.Generator().manual_seed(0)) - 1) * eps
        points[::2] = points[::2].sign() * eps
        y = model(points)
        model[2].bias[0] += 1.5 - (y[:, 0] - y[:, 1]).min()
    settings = VerifySettings().changed(attack={"restarts": 0, "search_every": 0})
    zero = torch.zeros(1, INPUTS)
    [verdict] = verify(model, zero, torch.zeros(1, dtype=torch.int64), eps, low=-9.0, high=9.0, settings=settings)
    assert verdict.status == "verified"
    assert verdict.subproblems < 1200
