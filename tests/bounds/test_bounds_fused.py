"""The GPU kernels give the numbers of the plain formulas; here they run in Triton's interpreter, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is made for Linux alone")

SCRIPT = """
import torch
from torch import nn
from lipgraft.bounds import bound, fused
from lipgraft.box import Box
from lipgraft.grafting import apply

g = torch.Generator().manual_seed(0)
rows, tables = torch.randn(5, 70, generator=g), torch.randn(4, 3, 70, generator=g)
index = torch.tensor([2, 0, 0, 1, 2])
lower, gap, high, low = (table[index] for table in tables)
negative, positive = rows.clamp(max=0), rows.clamp(min=0)
assert fused.usable(rows) and not fused.usable(rows.clone().requires_grad_())
out, const = fused.relax(rows, index, tables[0], tables[1], tables[2], None)
torch.testing.assert_close(out, rows * lower + negative * gap)
torch.testing.assert_close(const, (negative * high).sum(1))
_, const = fused.relax(rows, index, *tables)
torch.testing.assert_close(const, (negative * high + positive * low).sum(1))
least = fused.minimum(rows, index, tables[0], tables[1])
torch.testing.assert_close(least, (rows * lower - rows.abs() * gap).sum(1))
rows[0, 3] = torch.nan
assert fused.relax(rows, index, *tables)[0][0].isnan().any() and fused.minimum(rows, index, *tables[:2])[0].isnan()

model = nn.Sequential(
    nn.Conv2d(2, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.Tanh(),
    nn.Linear(5, 3),
)
for p in model.parameters():
    p.data = torch.randn(p.shape, generator=g) / 2
x = torch.rand(2, 2, 4, 4, generator=g)
cases = [(x, model), (x[:1], model)]  # one problem alone: its index is an expanded view
masks = {"1": torch.rand(4, 4, 4, generator=g) < 0.5, "3": torch.rand(4, 2, 2, generator=g) < 0.5}
cases.append((x, apply(model, masks, slope=0.3, intercept=0.1, input_shape=(2, 4, 4))))
for x, net in cases:
    with_kernels = bound(net, Box.linf(x, 0.1), neurons="all")
    fused.usable, kept = (lambda *_: False), fused.usable
    plain = bound(net, Box.linf(x, 0.1), neurons="all")
    fused.usable = kept
    torch.testing.assert_close(with_kernels.lower, plain.lower)
    torch.testing.assert_close(with_kernels.upper, plain.upper)
    for name, (lower, upper) in plain.layers.items():
        torch.testing.assert_close(with_kernels.layers[name][0], lower)
        torch.testing.assert_close(with_kernels.layers[name][1], upper)
print("the same numbers")
"""

OWN_LINES = """
import torch
from lipgraft.bounds import fused, own_lines
from lipgraft.bounds.backward import _Minimum
from lipgraft.bounds.own_lines import Shift
from lipgraft.bounds.relaxations import Lines

g = torch.Generator().manual_seed(1)
for count, has_low, shared in ((1, True, True), (1, False, False), (3, True, False)):
    slopes = torch.rand(2 * count, 71, generator=g)[:, :70].view(2, 1, count, 7, 2, 5).requires_grad_()
    data = torch.randn(2, 1, count, 7, 2, 5, generator=g).requires_grad_()
    upper, high, low = torch.randn(3, 2, 1, 1, 7, 2, 5, generator=g)
    low = low[:1].expand(2, 1, 1, 7, 2, 5) if shared else low
    lines = Lines(slopes, low if has_low else None, upper, high)
    amount = torch.randn(2, 3, generator=g).requires_grad_()
    shift = Shift(torch.tensor([[0, 5, 69], [7, 7, 1]]), amount) if count == 1 else None
    weight, inputs = torch.randn(data.shape, generator=g), [data, slopes, *([amount] if shift else [])]
    found = []
    for fused.available in (fused.available, lambda rows: False):
        out, const = own_lines.apply(data, lines, shift)
        value = (out * weight).sum() + (const * weight[..., 0, 0, 0]).sum()
        found.append((out, const, *torch.autograd.grad(value, inputs)))
    negative, positive = data.clamp(max=0), data.clamp(min=0)
    out = positive * slopes + negative * upper
    out = out if shift is None else shift.added(out)
    const = (negative * high + (positive * low if has_low else 0)).flatten(3).sum(3)
    value = (out * weight).sum() + (const * weight[..., 0, 0, 0]).sum()
    plain = (out, const, *torch.autograd.grad(value, inputs))
    for kernel, formula, expected in zip(*found, plain, strict=True):
        torch.testing.assert_close(kernel, expected)
        torch.testing.assert_close(formula, expected)
    fused.available = lambda rows: True

rows = torch.randn(3, 70, generator=g)
rows[0, :5] = 0.0
rows.requires_grad_()
centre, radius = torch.randn(3, 70, generator=g), torch.rand(3, 70, generator=g)
expected = (rows * centre - rows.abs() * radius).sum(1)
for fused.available in (fused.available, lambda rows: False):
    least = _Minimum.apply(rows, centre, radius)
    torch.testing.assert_close(least, expected)
    weight = torch.tensor([1.0, -2.0, 0.5])
    grads = [torch.autograd.grad((t * weight).sum(), rows, retain_graph=True)[0] for t in (least, expected)]
    torch.testing.assert_close(*grads)
print("the same numbers")
"""


def test_the_kernels_give_the_numbers_of_the_plain_formulas() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # must be set before the kernels are defined
    both = f"for script in ({SCRIPT!r}, {OWN_LINES!r}):\n    exec(script, {{}})"
    done = subprocess.run([sys.executable, "-c", both], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same numbers") == 2
