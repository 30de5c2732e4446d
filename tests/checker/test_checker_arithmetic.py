"""Numbers at the edge of what doubles can tell apart: too fine for them, too small for them, or flushed to zero."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper

from forged import checked, gemm, model, plainest, pointing, put
from lipgraft.checker import Rejected, check_folder, read_network
from lipgraft.checker.bounds import Forward


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="here no type is finer than a double")
def test_numbers_finer_than_doubles_are_rejected(tmp_path: Path) -> None:
    """Rounded to doubles they would shrink the box, move the counterexample, or be infinite. All claims are false."""
    x, zero = np.array([np.longdouble(2) ** -1080]), np.zeros(1, np.longdouble)
    weight, bias = [[-(2.0**1000)], [0.0]], [2.0**-90, 0.0]
    falling, rising = gemm(weight, bias), gemm(-np.array(weight), -np.array(bias))
    wide = plainest(falling, zero, np.array([np.longdouble(2) ** 1080]))
    for data, arrays in ((falling, plainest(falling, zero, x)), (rising, pointing(rising, x)), (falling, wide)):
        assert "of the type" in checked(tmp_path, data, arrays).reason


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_all_types_that_doubles_hold_are_read(tmp_path: Path, dtype: type) -> None:
    data = gemm([[1.0], [0.0]], [1.0, 0.0])
    assert checked(tmp_path, data, plainest(data, np.zeros(1, dtype), np.ones(1, dtype))).accepted


@pytest.fixture
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers to zero")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushing")
def test_arithmetic_that_flushes_subnormal_numbers_proves_nothing(tmp_path: Path) -> None:
    data = gemm([[1.0], [0.0]], [1.0, 0.0])
    put(tmp_path, data, plainest(data, [0.0], [1.0]))
    with pytest.raises(Rejected, match=r"flushes .* new process"):
        check_folder(tmp_path)


@pytest.mark.usefixtures("flushing")
def test_every_thread_that_checks_is_asked_whether_it_flushes(tmp_path: Path) -> None:
    """A thread that does not flush is free to check; what it has read helps no other one."""
    data = gemm([[1.0], [0.0]], [1.0, 0.0])
    arrays = plainest(data, [0.0], [1.0])

    def elsewhere() -> bool:
        torch.set_flush_denormal(False)  # a new thread may begin as the one that makes it
        return checked(tmp_path, data, arrays).accepted

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(elsewhere).result()
    assert "flushes" in checked(tmp_path, data, arrays).reason


def flushed(values: np.ndarray) -> np.ndarray:
    return np.where(abs(values) < np.float32(2.0**-126), np.float32(0), values)


@pytest.mark.parametrize("factor", [2.0**-63, 2.0**-70, 1.0])
def test_float32_intervals_cover_results_flushed_to_zero_of_inputs_that_are_not_subnormal(factor: float) -> None:
    """Sums of products of normal numbers, step by step, each result flushed."""
    random = np.random.default_rng(0)
    weight = (random.normal(size=(5, 40)) * factor).astype(np.float32)
    bias = (random.normal(size=5) * factor * factor).astype(np.float32)
    net = read_network(gemm(flushed(weight), flushed(bias), np.float32))
    for _ in range(20):
        x = flushed((random.normal(size=40) * factor).astype(np.float32))
        forward = Forward(net, x.astype(float), x.astype(float), hardware=True)
        forward.affine(net.nodes[1])
        values = flushed(bias)
        for j in random.permutation(40):
            values = flushed(values + flushed(flushed(weight)[:, j] * x[j]))
        assert ((forward.values[1].low <= values) & (values <= forward.values[1].high)).all()


def test_a_counterexample_to_rows_that_underflow_is_rejected(tmp_path: Path) -> None:
    """Products of 0.4 and -0.6 times the smallest double are 0 and -1 times it; their exact sum is above zero."""
    x, rows = np.array([0.4, 0.4, 0.4, -0.6]) * 2.0**-474, np.full((1, 4), 2.0**-600)
    assert sum(Fraction(a) * Fraction(b) for a, b in zip(x.tolist(), rows[0].tolist(), strict=True)) > 0
    data = model(helper.make_node("Identity", ["x"], ["y"]), shape=(4,), double=True)
    claim = {"rows": rows, "offset": np.zeros(1)}
    assert "no row" in checked(tmp_path, data, pointing(data, x, claim="rows") | claim).reason
    larger = pointing(data, -x * 2.0**100, claim="rows") | claim
    assert checked(tmp_path, data, larger).accepted
