"""The GPU kernels of interval bounds give the numbers of the plain formulas, in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is made for Linux alone")

SCRIPT = """
from importlib import import_module
from types import SimpleNamespace
import torch
from lipgraft.bounds import fused
from lipgraft.training import intervals

ibp_reg = import_module("lipgraft.training.regularisers.ibp_reg")

g = torch.Generator().manual_seed(0)
calls, one_kernel = [], intervals._in_one_kernel
intervals._in_one_kernel = lambda name, *inputs: (calls.append(name), one_kernel(name, *inputs))[1]
usable = fused.usable


def relu(c, r, by):
    c, r = c.detach().requires_grad_(), r.detach().requires_grad_()
    ball = intervals._Relu.apply(c, r)
    return (*ball, *torch.autograd.grad(ball, (c, r), by))


for shape in ((1100,), (3, 700), (2, 5, 4, 6)):
    c, r = torch.randn(shape, generator=g), torch.rand(shape, generator=g)
    by = torch.randn(shape, generator=g), torch.randn(shape, generator=g)
    for last in (False, True) if len(shape) == 4 else (False,):
        if last:
            c, r = (t.contiguous(memory_format=torch.channels_last) for t in (c, r))
        fused.usable = usable
        got = relu(c, r, by)  # gradients may come in another order of memory than values
        fused.usable = lambda *_: False
        for one, other in zip(got, relu(c, r, by), strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == c.stride()
assert calls == ["relu_ball", "relu_ball_backward"] * 4, calls
fused.usable = usable
mixed = relu(c, r.contiguous(), by)  # two orders of memory: plain
assert len(calls) == 8
nan = torch.tensor([torch.nan, 1.0])
assert intervals._Relu.apply(nan, torch.ones(2))[0].isnan().tolist() == [True, False]
assert intervals._Relu.apply(torch.zeros(0), torch.zeros(0))[0].shape == (0,)

sums = []
apply = ibp_reg._Sums.apply
ibp_reg._Sums.apply = lambda *ball: (sums.append(1), apply(*ball))[1]
node = SimpleNamespace(graft=None)
for shape in ((2500,), (2, 5, 4, 6)):
    c, r = torch.randn(shape, generator=g), torch.rand(shape, generator=g) / 2
    if len(shape) == 4:
        c, r = (t.contiguous(memory_format=torch.channels_last) for t in (c, r))
    weights = torch.randn(5, generator=g)
    both = []
    for fused.usable in (usable, lambda *_: False):
        ball = c.detach().requires_grad_(), r.detach().requires_grad_()
        width, on, off = ibp_reg._measures(node, *ball)
        numbers = torch.stack([width, *on, *off])
        both.append((numbers, *torch.autograd.grad((numbers * weights).sum(), ball)))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
assert len(sums) == 2
print("the same numbers")
"""


def test_the_kernels_give_the_numbers_of_the_plain_formulas() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.strip() == "the same numbers", run.stderr
