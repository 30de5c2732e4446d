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


@triton.jit
def own_lines(
    rows,
    lower,
    upper,
    high,
    low,
    out,
    const,
    count,
    size,
    lower_problem,
    lower_row,
    upper_problem,
    high_problem,
    low_problem,
    HAS_LOW: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    problem = row // count
    lower += problem * lower_problem + (row - problem * count) * lower_row
    total = tl.zeros([BLOCK], dtype=rows.dtype.element_ty)
    for step in range(STEPS):
        k = step * BLOCK + tl.arange(0, BLOCK)
        here = k < size
        value = tl.load(rows + row * size + k, mask=here, other=0.0)
        positive = value > 0
        below = tl.load(lower + k, mask=here, other=0.0)
        above = tl.load(upper + problem * upper_problem + k, mask=here, other=0.0)
        intercept = tl.load(high + problem * high_problem + k, mask=here, other=0.0)
        if HAS_LOW:
            intercept = tl.where(positive, tl.load(low + problem * low_problem + k, mask=here, other=0.0), intercept)
        else:
            intercept = tl.where(positive, 0.0, intercept)
        total += value * intercept
        tl.store(out + row * size + k, value * tl.where(positive, below, above), mask=here)
    tl.store(const + row, tl.sum(total, axis=0))


@triton.jit
def own_lines_gradient(
    rows,
    lower,
    upper,
    high,
    low,
    of_out,
    of_const,
    of_rows,
    of_lower,
    count,
    size,
    lower_problem,
    lower_row,
    upper_problem,
    high_problem,
    low_problem,
    HAS_LOW: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    problem = row // count
    lower += problem * lower_problem + (row - problem * count) * lower_row
    of_constant = tl.load(of_const + row)
    for step in range(STEPS):
        k = step * BLOCK + tl.arange(0, BLOCK)
        here = k < size
        value = tl.load(rows + row * size + k, mask=here, other=0.0)
        gradient = tl.load(of_out + row * size + k, mask=here, other=0.0)
        positive = value > 0
        below = tl.load(lower + k, mask=here, other=0.0)
        above = tl.load(upper + problem * upper_problem + k, mask=here, other=0.0)
        intercept = tl.load(high + problem * high_problem + k, mask=here, other=0.0)
        if HAS_LOW:
            intercept = tl.where(positive, tl.load(low + problem * low_problem + k, mask=here, other=0.0), intercept)
        else:
            intercept = tl.where(positive, 0.0, intercept)
        slope = tl.where(positive, below, above)
        tl.store(of_rows + row * size + k, gradient * slope + of_constant * intercept, mask=here)
        tl.store(of_lower + row * size + k, tl.where(positive, gradient * value, 0.0), mask=here)
