"""Triton kernels of `fused`: one program per row. Imported only where Triton is."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def relax_rows(
    rows,
    index,
    lower,
    gap,
    high,
    low,
    out,
    const,
    size,
    HAS_LOW: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    line = tl.load(index + row) * size
    total = tl.zeros([BLOCK], dtype=rows.dtype.element_ty)
    for step in range(STEPS):
        k = step * BLOCK + tl.arange(0, BLOCK)
        here = k < size
        value = tl.load(rows + row * size + k, mask=here, other=0.0)
        negative = tl.minimum(value, 0.0)
        slope = tl.load(lower + line + k, mask=here, other=0.0)
        more = tl.load(gap + line + k, mask=here, other=0.0)
        total += negative * tl.load(high + line + k, mask=here, other=0.0)
        if HAS_LOW:
            total += (value - negative) * tl.load(low + line + k, mask=here, other=0.0)
        tl.store(out + row * size + k, value * slope + negative * more, mask=here)
    tl.store(const + row, tl.sum(total, axis=0))


@triton.jit
def minimum_of_rows(rows, index, centre, radius, out, size, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    line = tl.load(index + row) * size
    total = tl.zeros([BLOCK], dtype=rows.dtype.element_ty)
    for step in range(STEPS):
        k = step * BLOCK + tl.arange(0, BLOCK)
        here = k < size
        value = tl.load(rows + row * size + k, mask=here, other=0.0)
        total += value * tl.load(centre + line + k, mask=here, other=0.0)
        total -= tl.abs(value) * tl.load(radius + line + k, mask=here, other=0.0)
    tl.store(out + row, tl.sum(total, axis=0))
