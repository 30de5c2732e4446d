"""Work is cut to a budget: nothing is left out or done twice, and the pieces do not show in the result."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bounds_cases import classifier, random_box
from lipgraft.bounds import METHODS, AlphaSettings, bound, layer
from lipgraft.bounds import memory as memory_room
from lipgraft.bounds.memory import chunked
from lipgraft.network import Network

CPU = torch.device("cpu")
SIZES = st.integers(0, 40)


def pieces(batch: int, rows: int, bytes_per_row: int, limit: int | None = None) -> tuple[Tensor, list[int]]:
    """How often each (problem, row) was done, and the sizes of the pieces tried. limit: the most cells that fit."""
    done, tried = torch.zeros(batch, rows, dtype=torch.long), []

    def work(problems: slice, some: slice) -> None:
        size = done[problems, some].numel()
        tried.append(size)
        if limit is not None and size > limit:
            raise torch.OutOfMemoryError("out of memory, for the test")
        done[problems, some] += 1

    chunked(batch, rows, bytes_per_row, CPU, work)
    return done, tried


@settings(max_examples=200)
@given(SIZES, SIZES, st.integers(1, 2**27))
def test_every_problem_and_row_is_done_once_in_pieces_that_fit(batch: int, rows: int, bytes_per_row: int) -> None:
    done, tried = pieces(batch, rows, bytes_per_row)
    assert (done == 1).all()
    fit = max(1, memory_room.budget(CPU) // (bytes_per_row * memory_room.LIVE))
    assert all(0 < size <= fit for size in tried)


@settings(max_examples=200)
@given(SIZES, SIZES, st.integers(1, 2**27), st.integers(1, 200))
def test_out_of_memory_halves_the_pieces_and_loses_nothing(
    batch: int, rows: int, bytes_per_row: int, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_room.gc, "collect", lambda: 0)  # it takes a third of a second, thousands of times
        done, tried = pieces(batch, rows, bytes_per_row, limit)
    assert (done == 1).all()
    for size, following in itertools.pairwise(tried):
        if size > limit:
            assert following <= size // 2


def test_a_single_row_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        pieces(2, 3, 8, limit=0)


def test_the_error_of_a_full_cpu_counts_as_out_of_memory_and_others_do_not() -> None:
    calls = []

    def work(problems: slice, rows: slice) -> None:
        calls.append((problems, rows))
        if len(calls) == 1:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        if len(calls) == 2:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        chunked(4, 4, 8, CPU, work)
    assert len(calls) == 2


@pytest.mark.parametrize("activation", ["relu", "grafted tanh"])
@pytest.mark.parametrize("method", METHODS)
def test_a_tiny_budget_gives_the_same_bounds(
    method: str, activation: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = classifier("digits-cnn", activation)
    box = random_box(network.input_shape, 3, generator, torch.tensor([0.002, 0.01, 0.02]))
    alpha = AlphaSettings(iterations=3)
    large = bound(network, box, method, alpha=alpha)
    monkeypatch.setattr(memory_room, "CPU_BUDGET", 2**21)
    small = bound(network, box, method, alpha=alpha)
    torch.testing.assert_close(small.lower, large.lower, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(small.upper, large.upper, rtol=1e-9, atol=1e-9)
    for name, ends in large.layers.items():
        torch.testing.assert_close(small.layers[name], ends, rtol=1e-9, atol=1e-9)


def test_the_engine_recovers_when_the_device_says_no(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that computes rows fails whenever it is given more than a few of them."""
    network = classifier("digits-cnn", "relu")
    box = random_box(network.input_shape, 2, generator, 0.01)
    expected = bound(network, box, "crown")
    inner, refused = layer.neuron_bounds, []

    def scarce(network: Network, path: object, relaxed: object, index: Tensor, signs: Tensor) -> Tensor:
        if signs.numel() > 50:
            refused.append(signs.numel())
            raise torch.OutOfMemoryError("out of memory, for the test")
        return inner(network, path, relaxed, index, signs)

    monkeypatch.setattr(layer, "neuron_bounds", scarce)
    got = bound(network, box, "crown")
    assert refused
    torch.testing.assert_close(got.lower, expected.lower, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.layers, expected.layers, rtol=1e-9, atol=1e-9)
