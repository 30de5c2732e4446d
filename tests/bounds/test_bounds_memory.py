"""Work is cut to a budget: nothing is left out or done twice, and the pieces do not show in the result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident, main_thread
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bounds_cases import assert_same, classifier, random_box
from lipgraft.bounds import METHODS, AlphaSettings, bound, crown
from lipgraft.bounds import memory as memory_room
from lipgraft.bounds.memory import chunked
from lipgraft.bounds.threads import on_threads
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


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@settings(max_examples=100)
@given(SIZES, SIZES, st.integers(1, 2**27))
def test_threads_share_the_work_and_do_everything_once(batch: int, rows: int, bytes_per_row: int) -> None:
    done, by = torch.zeros(batch, rows, dtype=torch.long), [-1] * batch

    def work(problems: slice, some: slice) -> None:
        done[problems, some] += 1
        by[problems] = [get_ident()] * (problems.stop - problems.start)
        assert torch.get_num_threads() == (2 if get_ident() == main_thread().ident else 1)

    chunked(batch, rows, bytes_per_row, CPU, work, parallel=True)
    assert (done == 1).all()
    fit = max(1, memory_room.budget(CPU) // (bytes_per_row * memory_room.LIVE))
    shared = batch in (2, 4, 5, 6) and batch * rows > fit
    if shared:
        assert main_thread().ident not in by


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_threads_work_in_the_callers_mode_and_leave_the_settings_alone(mode: Callable[[], Any]) -> None:
    seen = []

    def work() -> None:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()))

    with mode():
        expected = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), 1)
        on_threads([work, work])
    assert seen == [expected] * 2
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_on_a_thread_is_the_callers_and_the_settings_come_back() -> None:
    def work() -> None:
        raise ValueError("on a thread")

    with pytest.raises(ValueError, match="on a thread"):
        on_threads([work, lambda: None])
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", ["crown", "alpha-crown"])
def test_threads_give_the_bounds_of_one_thread(
    method: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = classifier("digits-cnn", "relu")
    box = random_box(network.input_shape, 4, generator, torch.tensor([0.002, 0.01, 0.02, 0.015]))
    alpha = AlphaSettings(iterations=3)
    monkeypatch.setattr(memory_room, "CPU_BUDGET", 2**21)
    used: list[int] = []
    monkeypatch.setattr(memory_room, "on_threads", lambda works: (used.append(len(works)), on_threads(works)))
    several = bound(network, box, method, alpha=alpha)
    assert set(used) == {2}
    torch.set_num_threads(1)
    assert_same(several, bound(network, box, method, alpha=alpha), 1e-9)


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
    inner, refused = crown.neuron_bounds, []

    def scarce(network: Network, path: object, relaxed: object, index: Tensor, signs: Tensor) -> Tensor:
        if signs.numel() > 50:
            refused.append(signs.numel())
            raise torch.OutOfMemoryError("out of memory, for the test")
        return inner(network, path, relaxed, index, signs)

    monkeypatch.setattr(crown, "neuron_bounds", scarce)
    got = bound(network, box, "crown")
    assert refused
    torch.testing.assert_close(got.lower, expected.lower, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.layers, expected.layers, rtol=1e-9, atol=1e-9)


def test_an_image_on_its_own_is_bounded_where_it_needs_it_whatever_its_neighbours_need(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = classifier("digits-cnn", "relu")
    box = random_box(network.input_shape, 3, generator, torch.tensor([0.001, 0.005, 0.02]))
    inner, rows = crown.neuron_bounds, []

    def counted(network: Network, path: object, relaxed: object, index: Tensor, signs: Tensor) -> Tensor:
        rows.append((len(index), bool((signs != 0).all())))
        return inner(network, path, relaxed, index, signs)

    monkeypatch.setattr(crown, "neuron_bounds", counted)
    monkeypatch.setattr(memory_room, "CPU_BUDGET", 2**19)
    bound(network, box, "crown")
    alone = [real for boxes, real in rows if boxes == 1]
    assert len(alone) > 3
    assert all(alone)
