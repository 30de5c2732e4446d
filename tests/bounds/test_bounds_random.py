"""Random small graphs: bounds hold, and CROWN agrees with the dense reference to the last digits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bounds_cases import assert_sound, random_box, reach
from bounds_graphs import image_networks
from bounds_reference import reference_batch
from lipgraft.bounds import METHODS, AlphaSettings, bound
from lipgraft.network import Network

SEEDS = st.integers(0, 2**31 - 1)
RADII = st.sampled_from([0.0, 1e-4, 0.02, 0.3])


@settings(max_examples=30)
@given(image_networks(), SEEDS, RADII)
def test_bounds_of_a_random_graph_hold(network: Network, seed: int, eps: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    box = random_box(network.input_shape, 2, generator, torch.tensor([eps, eps / 3]))
    reached = reach(network, box, generator)
    for method in METHODS:
        assert_sound(network, reached, bound(network, box, method, alpha=AlphaSettings(iterations=2)))


@pytest.mark.parametrize("every", [False, True])
@settings(max_examples=30)
@given(image_networks(), SEEDS, RADII)
def test_crown_of_a_random_graph_equals_the_dense_reference(
    every: bool, network: Network, seed: int, eps: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    box = random_box(network.input_shape, 2, generator, torch.tensor([eps, eps / 3]))
    C = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    got = bound(network, box, "crown", C, neurons="all" if every else "needed")
    for b, want in enumerate(reference_batch(network, box, C, every=every)):
        for _, node in network.activations():
            for end, reference in zip(got.layers[node.name], want.known.intervals[node.inputs[0]], strict=True):
                torch.testing.assert_close(end[b], reference[0], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(got.lower[b], want.lower, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(got.upper[b], want.upper, rtol=1e-8, atol=1e-8)
