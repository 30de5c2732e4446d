"""The engine's CROWN, in float32, agrees with the independent dense float64 reference on the paper's networks.

The dense reference cannot afford every neuron of a large network. It takes the engine's bounds of earlier layers as
known and checks a sample of neurons of each layer, stable and unstable, and the margins. (Small networks are compared
whole, in `test_bounds_random.py`.)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from bounds_cases import assert_within, reach
from bounds_reference import Interval, Known, interval_of, is_unstable, minimum, readers_of, refined, values_of
from lipgraft import models
from lipgraft.bounds.crown import Prepared, prepare, specification_bounds
from lipgraft.box import Box
from lipgraft.network import Network, full_precision, trace

pytestmark = pytest.mark.xdist_group("reference")  # one process makes each fixture, and runs all tests on it

EPS, BATCH, SAMPLE = 2 / 255, 2, 24
NETWORKS = ["cnn-b", "resnet4b", "conv-big"]


@pytest.fixture(scope="module", params=NETWORKS)
def prepared(request: pytest.FixtureRequest) -> Prepared:
    """The engine's bounds of every layer, as it computes them by default."""
    model = models.build(request.param, "cifar10", seed=0)
    x = torch.rand(BATCH, *model.spec.input_shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), full_precision():
        return prepare(trace(model, model.spec.input_shape).to(), Box.linf(x, EPS))


def at_image(prepared: Prepared, network: Network, b: int) -> Iterator[tuple[int, Interval, Interval, Known]]:
    """For one image: each node, its interval from the inputs' bounds, the engine's, and what was known before it."""
    centre = prepared.box[b : b + 1].centre.double()
    known = Known(network, values_of(network, centre))
    for i, (lower, upper) in enumerate(prepared.intervals):
        engine = (lower[b : b + 1].double(), upper[b : b + 1].double())
        node = network.nodes[i]
        plain = engine if i == 0 else interval_of(node, [known.intervals[j] for j in node.inputs])
        yield i, plain, engine, known
        known.add(i, engine)


def assert_agree(got: Tensor, want: Tensor) -> None:
    """To 1e-4, relative; numbers near zero relative to the layer's size."""
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


def test_neurons_of_every_layer_agree_with_the_dense_reference(prepared: Prepared, generator: torch.Generator) -> None:
    network = prepared.network.to(dtype=torch.float64)
    readers, checked = readers_of(network), 0
    for b in range(BATCH):
        for i, plain, engine, known in at_image(prepared, network, b):
            if i not in readers:
                continue
            unstable = is_unstable(readers[i][0], plain).flatten()
            order = torch.randperm(len(unstable), generator=generator)
            sample = torch.cat([order[unstable[order]][:SAMPLE], order[~unstable[order]][:SAMPLE]])
            want = refined(known, i, plain, torch.zeros_like(unstable).scatter(0, sample, True))
            for got_end, want_end in zip(engine, want, strict=True):
                assert_agree(got_end.flatten()[sample], want_end.flatten()[sample])
            checked += int(unstable[sample].sum())
    assert checked > 100


def test_margins_agree_with_the_dense_reference(prepared: Prepared) -> None:
    network = prepared.network.to(dtype=torch.float64)
    classes = network.output_shape[0]
    eye = torch.eye(classes)
    C = (eye[0] - eye[1:]).expand(BATCH, 1, -1, -1)
    with torch.no_grad(), full_precision():
        got = specification_bounds(prepared, C)[:, 0].double()
    for b in range(BATCH):
        *_, (_, _, _, known) = at_image(prepared, network, b)
        assert_agree(got[b], minimum(known, network.output, C[b, 0].double()))


def test_bounds_of_every_layer_hold_at_full_size(prepared: Prepared, generator: torch.Generator) -> None:
    with torch.no_grad(), full_precision():
        reached = reach(prepared.network, prepared.box, generator, count=40)
    for _, node in prepared.network.activations():
        i = node.inputs[0]
        assert_within((reached.least[i], reached.greatest[i]), prepared.intervals[i], node.name)
